// @ts-check
// The line above the heat map: which series, on which scale, which steps, what was found, what is read.
import { GRADIENT } from "./colours.js";
import { h, menu } from "./dom.js";
import { countText } from "./numbers.js";

/** @typedef {import("./history.js").History} History */

const MAX_LISTED = 200;

/** @param {History} history */
export function panel(history) {
  const { all } = history;
  const choice = h("select", { "aria-label": "Series", change: () => history.choose(history.all[choice.selectedIndex]) }, ...all.map((series) => h("option", {}, series.title)));
  const log = h("input", { type: "checkbox", change: () => ((history.is_log = log.checked), history.show()) });
  const step = (label, change) => h("input", { type: "number", "aria-label": label, title: label, change });
  const zoom = () => history.zoom(from.value === "" ? -Infinity : +from.value, to.value === "" ? Infinity : +to.value);
  const from = step("From step", zoom);
  const to = step("To step", zoom);
  const whole = h("button", { title: "show all steps (double click in the heat map)", click: () => history.zoom(-Infinity, Infinity) }, "all steps");
  const low = h("span", {});
  const high = h("span", {});
  const colours = h("i", { class: "colours", role: "img" });
  colours.style.background = GRADIENT;
  const legend = h("span", { class: "legend" }, low, colours, high, h("span", {}, h("b", { class: "sign" }, "×"), " not finite"), h("span", {}, "─ zero"));
  const readout = h("output", { class: "readout", "aria-live": "polite" });
  const findings = menu("findings", "Findings", () => findings_list(history, () => (findings.open = false)));
  findings.classList.add("findings");
  const element = h(
    "div", { class: "tools history", role: "group", "aria-label": "Over time" },
    choice, h("label", {}, log, "log"),
    h("span", { class: "range" }, "steps ", from, "–", to), whole,
    findings, legend, readout,
  );

  /** @param {boolean} grows whether something has come, and nothing was chosen: who types is let alone */
  const show = (grows = false) => {
    const { series, is_log } = history;
    const n_found = n_findings(history);
    findings.hidden = !n_found;
    findings.firstChild.textContent = `findings (${countText(n_found)})`;
    const { first, last, n } = history.all[0];
    for (const input of [from, to]) {
      input.min = String(first[0]);
      input.max = String(last[n - 1]);
    }
    choice.selectedIndex = history.all.indexOf(series);
    log.checked = is_log;
    log.disabled = !series.is_log;
    const [start, end] = history.span(series);
    const typed_in = grows ? element.getRootNode().activeElement : null;
    if (typed_in !== from) from.value = String(series.first[start]);
    if (typed_in !== to) to.value = String(series.last[Math.min(end, series.n) - 1]);
    whole.hidden = history.from === -Infinity && history.to === Infinity;
    const [least, most] = series.range[is_log ? 0 : 1].map((place) => series.number(is_log ? 10 ** place : place, 2));
    low.textContent = `≤ ${least}`;
    high.textContent = `≥ ${most}`;
    colours.setAttribute("aria-label", `colours from ${least}, dark, to ${most}, light, ${is_log ? "logarithmic" : "linear"}`);
  };
  show();
  const say = (text, by_key) => {
    // Who uses the keyboard hears the value of the slider already.
    readout.setAttribute("aria-live", by_key ? "off" : "polite");
    readout.textContent = text;
  };
  return { element, show, say };
}

/** @param {History} history */
const n_findings = (history) => history.all.reduce((sum, series) => sum + series.n_marks, 0);

/** @param {History} history @param {() => void} close */
function findings_list(history, close) {
  const found = history.all.flatMap((series) => series.marks.map((mark) => ({ series, mark })));
  const button = ({ series, mark }) => {
    const [row, column, kind, text] = mark;
    const go = () => {
      close();
      history.go_to(series, mark);
    };
    return h("button", { class: "finding", click: go }, h("b", { class: "badge", "data-note": kind }, kind),
      ` ${history.path(row)} · ${series.steps_text(column)} `, h("span", {}, text));
  };
  const rest = n_findings(history) - Math.min(found.length, MAX_LISTED);
  return [...found.slice(0, MAX_LISTED).map(button), ...(rest ? [h("p", {}, `… ${countText(rest)} more`)] : [])];
}
