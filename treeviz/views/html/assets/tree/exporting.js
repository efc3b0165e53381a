// @ts-check
// Saves what is shown of a view as a picture, text or JSON. No request leaves the page.
import { whatText } from "./cells.js";
import { h } from "./dom.js";
import { foldedText } from "./folds.js";

/** The entries of the menu. @param {import("./view.js").View} view @param {(text: string, click: () => void) => Node} act */
export function exportChoices(view, act) {
  const picture = (format) => () => savePicture(view, format).catch((error) => view.setStatus(`No picture: ${error.message}`));
  return [
    ...(view.savePage ? [act("Page (HTML)", view.savePage)] : []),
    act("Picture (PNG)", picture("PNG")),
    act("Picture (SVG)", picture("SVG")),
    act("Text", () => download(view, "txt", `data:text/plain;charset=utf-8,${encodeURIComponent(rowsAsText(view))}`)),
    act("JSON", () => download(view, "json", `data:application/json,${encodeURIComponent(rowsAsJson(view))}`)),
  ];
}

/** What the row shows, by the title of its column. @param {import("./view.js").View} view @param {number} row */
const shownIn = ({ tree, rows, grid }, row) =>
  grid.columns.map((column) => [column.title, column.format === "type" ? whatText(tree, tree.factCodes[row]) : foldedText(rows.folds, column, row)]);

/** @param {import("./view.js").View} view */
function rowsAsText(view) {
  const { rows, grid } = view;
  const lines = [["name", ...grid.columns.map(({ title }) => title)]];
  for (const row of rows.visible.subarray(0, rows.count)) lines.push(["  ".repeat(rows.depth(row)) + rows.label(row), ...shownIn(view, row).map(([, text]) => text)]);
  const widths = lines[0].map((_, i) => lines.reduce((most, line) => Math.max(most, line[i].length), 0));
  return lines.map((line) => line.map((text, i) => text.padEnd(widths[i])).join("  ").trimEnd()).join("\n") + "\n";
}

/** @param {import("./view.js").View} view */
function rowsAsJson(view) {
  const { tree, rows } = view;
  return JSON.stringify(Array.from(rows.visible.subarray(0, rows.count), (row) => ({ path: tree.keystr(row), name: rows.label(row), ...Object.fromEntries(shownIn(view, row)) })), null, 1);
}

/** Save a page of a view. It makes no requests; frames of values build functions. @param {import("./view.js").View} view @param {...string} parts its body */
export function downloadPage(view, ...parts) {
  const policy = "default-src 'unsafe-inline' 'unsafe-eval' data:";
  const head = `<!DOCTYPE html><meta charset=utf-8><meta http-equiv=Content-Security-Policy content="${policy}"><meta name=color-scheme content="light dark"><title>${view.tree.name.replace(/</g, "&lt;")}</title>`;
  download(view, "html", URL.createObjectURL(new Blob([head, ...parts], { type: "text/html" })));
}

export const download = (view, suffix, href) => h("a", { href, download: `${view.tree.name.replace(/[^\w.-]+/g, "_").slice(0, 80)}.${suffix}` }).click();

/** @param {import("./view.js").View} view @param {"SVG" | "PNG"} format */
async function savePicture(view, format) {
  const { markup, width, height } = drawn(view);
  let href = `data:image/svg+xml,${encodeURIComponent(markup)}`;
  if (format === "PNG") {
    const image = new Image();
    image.src = href;
    await image.decode();
    const scale = Math.max(2, devicePixelRatio);
    const canvas = h("canvas", { width: width * scale, height: height * scale });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    href = canvas.toDataURL("image/png");
  }
  download(view, format.toLowerCase(), href);
}

/** An SVG picture that holds a copy of the elements and their styles. @param {import("./view.js").View} view */
function drawn({ root, grid }) {
  const copy = root.cloneNode(true);
  const all = (selector) => [...copy.querySelectorAll(selector)];
  for (const element of all("iframe, .readout, .tools, .footer .range")) element.remove();
  const canvases = [...root.querySelectorAll("canvas")];
  all("canvas").forEach((canvas, i) => {
    const image = h("img", { src: canvases[i].toDataURL(), class: canvas.className });
    image.style.cssText = `${canvas.style.cssText};display:block`;
    if (!image.style.width) image.style.width = "100%";
    image.hidden = canvas.hidden;
    canvas.replaceWith(image);
  });
  const scroller = copy.querySelector(".scroller");
  const { scrollLeft, scrollTop, offsetWidth, offsetHeight, clientWidth } = grid.element;
  // What sticks to an edge stays there.
  const shift = (element, x, y) => (element.style.translate = `${x}px ${y}px`);
  for (const element of scroller.children) shift(element, element.matches(".axis, .heat-map") ? 0 : -scrollLeft, element.matches(".head, .above, .axis") ? 0 : -scrollTop);
  for (const key of all(".cell.key")) shift(key, scrollLeft, 0);
  scroller.style.cssText += `;flex:none;width:${offsetWidth}px;height:${offsetHeight}px;max-height:none;overflow:hidden;border-right:${offsetWidth - clientWidth}px solid transparent`;
  const width = root.offsetWidth;
  copy.style.width = `${width}px`;
  copy.style.height = "auto";
  // The colors of the host are not in reach of a picture.
  const style = getComputedStyle(root);
  for (const [name] of sheetText(root).matchAll(/--\w+(?=:)/g)) copy.style.setProperty(name, style.getPropertyValue(name));
  const height = root.offsetHeight - root.querySelector(".tools").offsetHeight;
  const inside = new XMLSerializer().serializeToString(h("div", {}, h("style", {}, sheetText(root)), copy));
  return { width, height, markup: `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}"><foreignObject width="100%" height="100%">${inside}</foreignObject></svg>` };
}

const sheetText = (root) => [...root.getRootNode().adoptedStyleSheets[0].cssRules].map((rule) => rule.cssText).join("");
