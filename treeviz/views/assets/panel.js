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
  const choice = h("select", { "aria-label": "Series", change: () => history.choose(all[choice.selectedIndex]) }, ...all.map((series) => h("option", {}, series.title)));
  const log = h("input", { type: "checkbox", change: () => ((history.is_log = log.checked), history.show()) });
  const { first, last, n } = all[0];
  const step = (label, change) => h("input", { type: "number", "aria-label": label, title: label, min: first[0], max: last[n - 1], change });
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
  const found = all.flatMap((series) => series.marks.map((mark) => ({ series, mark })));
  const n_found = all.reduce((sum, series) => sum + series.n_marks, 0);
  const findings = menu(`findings (${countText(n_found)})`, "Findings", () => findings_list(history, found, n_found, () => (findings.open = false)));
  findings.classList.add("findings");
  const element = h(
    "div", { class: "tools history", role: "group", "aria-label": "Over time" },
    choice, h("label", {}, log, "log"),
    h("span", { class: "range" }, "steps ", from, "–", to), whole,
    ...(n_found ? [findings] : []), legend, readout,
  );

  const show = () => {
    const { series, is_log } = history;
    choice.selectedIndex = all.indexOf(series);
    log.checked = is_log;
    log.disabled = !series.is_log;
    const [start, end] = history.span(series);
    from.value = String(series.first[start]);
    to.value = String(series.last[end - 1]);
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
function findings_list(history, found, n_found, close) {
  const button = ({ series, mark }) => {
    const [row, column, kind, text] = mark;
    const go = () => {
      close();
      history.go_to(series, mark);
    };
    return h("button", { class: "finding", click: go }, h("b", { class: "badge", "data-note": kind }, kind),
      ` ${history.path(row)} · ${series.steps_text(column)} `, h("span", {}, text));
  };
  const rest = n_found - Math.min(found.length, MAX_LISTED);
  return [...found.slice(0, MAX_LISTED).map(button), ...(rest ? [h("p", {}, `… ${countText(rest)} more`)] : [])];
}
