// @ts-check
// Saves what is seen of a view, without its tools, as a picture. No request leaves the page.
import { h } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";

/** Download the picture. @param {import("./view.js").View} view @param {"SVG" | "PNG"} format */
export async function savePicture(view, format) {
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
  h("a", { href, download: `${view.tree.name.replace(/[^\w.-]+/g, "_").slice(0, 80)}.${format.toLowerCase()}` }).click();
}

/** An SVG picture that holds a copy of the elements and their styles. @param {import("./view.js").View} view */
function drawn({ root, grid }) {
  const copy = root.cloneNode(true);
  const all = (selector) => [...copy.querySelectorAll(selector)];
  for (const element of all("iframe, .readout, .tools:not(:has(.legend)), .tools > :not(.legend)")) element.remove();
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
  const tools = [...root.querySelectorAll(".tools")].reduce((sum, element) => sum + element.offsetHeight, 0);
  const height = root.offsetHeight - tools + 32 * all(".tools").length;
  const inside = new XMLSerializer().serializeToString(h("div", {}, h("style", {}, sheetText(root)), copy));
  return { width, height, markup: `<svg xmlns="${SVG}" width="${width}" height="${height}"><foreignObject width="100%" height="100%">${inside}</foreignObject></svg>` };
}

const sheetText = (root) => [...root.getRootNode().adoptedStyleSheets[0].cssRules].map((rule) => rule.cssText).join("");
