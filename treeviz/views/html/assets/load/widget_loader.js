// @ts-check
// Loads the explorer for anywidget: unpacks its deflated text, PACKED, once for a page, however many widgets there are.
// Unpacking goes on after this module is loaded, since anywidget 0.11 gives up on a module that takes two seconds: the widget
// would receive no messages ever after.
import { bytesOf } from "./base91.js";

// @ts-ignore bundle.py puts PACKED before this text.
const packed = PACKED;
/** @type {Map<string, Promise<any>>} */
const modules = (globalThis[Symbol.for("treeviz.modules")] ??= new Map());

async function unpacked() {
  const stream = new Blob([/** @type {any} */ (bytesOf(packed))]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  // saving.js writes the text into pages.
  const url = URL.createObjectURL(new Blob([(globalThis[Symbol.for("treeviz.source")] = await new Response(stream).text())], { type: "text/javascript" }));
  try {
    return (await import(url)).default;
  } finally {
    URL.revokeObjectURL(url);
  }
}

if (!modules.has(packed)) modules.set(packed, unpacked());
const explorer = /** @type {Promise<any>} */ (modules.get(packed));

export default {
  initialize(context) {
    let isOver = false;
    let end = () => {};
    explorer.then((widget) => isOver || (end = widget.initialize(context))).catch(() => {});
    return () => ((isOver = true), end());
  },
  // anywidget shows an error of the module in place of the view.
  render: async (context) => (await explorer).render(context),
};
