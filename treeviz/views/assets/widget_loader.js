// @ts-check
// The module of a widget. Behind PACKED, the text of the explorer, which travels deflated with every widget.
// It is unpacked once for a page, however many widgets there are, and while they begin: a widget whose module takes
// longer than two seconds hears nothing ever after (anywidget 0.11).

/** @type {Map<string, Promise<any>>} */
const modules = (globalThis[Symbol.for("treeviz.modules")] ??= new Map());

async function unpacked() {
  const bytes = Uint8Array.from(atob(PACKED), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const url = URL.createObjectURL(new Blob([await new Response(stream).text()], { type: "text/javascript" }));
  try {
    return (await import(url)).default;
  } finally {
    URL.revokeObjectURL(url);
  }
}

if (!modules.has(PACKED)) modules.set(PACKED, unpacked());
const explorer = /** @type {Promise<any>} */ (modules.get(PACKED));

export default {
  initialize(context) {
    let is_over = false;
    let end = () => {};
    explorer.then((widget) => is_over || (end = widget.initialize(context))).catch(() => {});
    return () => ((is_over = true), end());
  },
  // What goes wrong with the module is said in the place of the view.
  render: async (context) => (await explorer).render(context),
};
