// @ts-check
// The toolbar of series: which series, scale and steps are shown, the findings, the color legend, the value at the pointer.
import { LOG_SCALE } from "./chart.js";
import { h, menu } from "../tree/dom.js";
import { countText } from "../tree/numbers.js";

/** @typedef {import("./series_view.js").SeriesView} SeriesView */

const MAX_LISTED = 200;

/** @param {SeriesView} seriesView */
export function controls(seriesView) {
  const { all } = seriesView;
  const choice = h("select", { "aria-label": "Series", change: () => seriesView.choose(seriesView.all[choice.selectedIndex]) }, ...all.map((series) => h("option", {}, series.title)));
  const log = h("input", { type: "checkbox", change: () => ((seriesView.isLog = log.checked), seriesView.show()) });
  const relative = h("select", { "aria-label": "Colors", title: "What the colors show", change: () => ((seriesView.colorScale.isRelative = relative.selectedIndex === 1), seriesView.show()) },
    h("option", {}, "absolute"), h("option", {}, "relative to median"));
  const step = (label, change) => h("input", { type: "number", "aria-label": label, title: label, change });
  const zoom = () => {
    const [n] = all[0].inner;
    seriesView.zoom(from.value === "" ? -Infinity : +from.value * n, to.value === "" ? Infinity : (+to.value + 1) * n - 1);
  };
  const from = step("From step", zoom);
  const to = step("To step", zoom);
  const whole = h("button", { title: "Or double-click the heat map", click: () => seriesView.zoom(-Infinity, Infinity) }, "All steps");
  const low = h("span", {});
  const high = h("span", {});
  const colors = h("i", { class: "colors", role: "img" });
  const legend = h("span", { class: "legend" }, low, colors, high, h("i", { class: "hatch" }), "not finite", h("i", { class: "dots" }), "zero");
  const findings = menu("Findings", () => findingsList(seriesView, () => (findings.open = false)));
  findings.classList.add("findings");
  const scale = h("span", { class: "scale" }, choice, relative, h("label", {}, log, "log scale"));
  const element = h(
    "span", { class: "series", role: "group", "aria-label": "Over time" },
    scale, findings,
  );
  const footer = h("div", { class: "footer" }, h("span", { class: "range" }, "steps ", from, "–", to, whole), h("span", { class: "gap" }), legend);

  /** @param {boolean} grows whether something has come, and nothing was chosen: who types is let alone */
  const show = (grows = false) => {
    const { series, isLog } = seriesView;
    const nFound = nFindings(seriesView);
    findings.hidden = !nFound;
    findings.firstChild.textContent = `Findings (${countText(nFound)})`;
    findings.firstChild.dataset.severity = worstSeverity(seriesView);
    const { first, last, n, inner } = seriesView.all[0];
    const stepOf = (position) => Math.floor(position / inner[0]);
    for (const input of [from, to]) {
      input.min = stepOf(first[0]);
      input.max = stepOf(last[n - 1]);
    }
    choice.selectedIndex = seriesView.all.indexOf(series);
    log.checked = isLog;
    log.disabled = !series.isLog;
    const [start, end] = seriesView.span(series);
    const typedIn = grows ? element.getRootNode().activeElement : null;
    if (typedIn !== from) from.value = stepOf(series.first[start]);
    if (typedIn !== to) to.value = stepOf(series.last[Math.min(end, series.n) - 1]);
    whole.hidden = seriesView.from === -Infinity && seriesView.to === Infinity;
    relative.hidden = !isLog;
    showColors();
  };
  const showColors = () => {
    const { colorScale, isLog } = seriesView;
    colorScale.fit();
    [low.textContent, high.textContent] = colorScale.ends;
    colors.style.background = seriesView.palette.gradient;
    colors.ariaLabel = `colors from ${low.textContent}, dark, to ${high.textContent}, light${colorScale.isRelative && isLog ? ", relative to the median of the row" : ""}${isLog ? LOG_SCALE : ""}`;
  };
  show();
  return { element, scale, footer, findings, show, showColors };
}

/** @param {SeriesView} seriesView */
const nFindings = (seriesView) => seriesView.all.reduce((sum, series) => sum + series.nMarks, 0);

/** @param {SeriesView | undefined} seriesView */
export function worstSeverity(seriesView) {
  const severities = (seriesView?.all ?? []).flatMap((series) => series.marks.map((mark) => mark[4]));
  return ["error", "warning"].find((each) => severities.includes(each)) ?? "info";
}

/** The findings, those of the same steps together as one event, in the order of the worst of each. @param {SeriesView} seriesView @param {() => void} close */
export function findingsList(seriesView, close) {
  const found = seriesView.all.flatMap((series) => series.marks.map((mark) => ({ series, mark }))).slice(0, MAX_LISTED);
  /** @type {Map<string, typeof found>} */
  const events = new Map();
  for (const each of found) {
    const steps = each.series.stepsText(each.mark[1]);
    events.set(steps, [...(events.get(steps) ?? []), each]);
  }
  const button = ({ series, mark }, when) => {
    const [row, , kind, text, severity] = mark;
    const go = () => {
      close();
      seriesView.goTo(series, mark);
    };
    return h("button", { class: "finding", click: go }, h("b", { class: "badge", "data-note": kind, "data-severity": severity }, kind),
      ` ${seriesView.path(row)}${when} `, h("u", {}, "show"), h("span", {}, text));
  };
  const event = ([steps, some]) => [
    ...(some.length > 1 ? [h("p", {}, `${steps}: ${countText(some.length)} findings`)] : []),
    ...some.map((each) => button(each, some.length > 1 ? "" : ` · ${steps}`)),
  ];
  const rest = nFindings(seriesView) - found.length;
  return [...[...events].flatMap(event), ...(rest ? [h("p", {}, `… ${countText(rest)} more`)] : [])];
}
