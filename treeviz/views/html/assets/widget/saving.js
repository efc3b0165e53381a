// @ts-check
// Saves the explorer as a page: its data, and this module, which mounts the data where no kernel is.
import { download } from "../tree/exporting.js";
import { FORMAT } from "../tree/tree.js";

/** @param {import("../tree/view.js").View} view */
export async function savePage(view) {
  const { packed, name } = view.tree;
  const bytes = new Uint8Array(await new Response(packed).arrayBuffer());
  const data = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  const policy = "default-src 'unsafe-inline' 'unsafe-eval' data:"; // no requests; frames of values build functions
  // In a script no end tag of one may stand: this module has none.
  const text = [
    `<!DOCTYPE html><meta charset=utf-8><meta http-equiv=Content-Security-Policy content="${policy}"><meta name=color-scheme content="light dark">`,
    `<title>${name.replace(/</g, "&lt;")}</title><div class=treeviz data-page data-treeviz="${FORMAT} details"><script type=text/plain>${data}<\/script></div>`,
    `<script>document["treeviz ${FORMAT}"]=(text)=>Uint8Array.from(atob(text),(byte)=>byte.charCodeAt(0))<\/script>`,
    `<script type=module>${globalThis[Symbol.for("treeviz.source")]}<\/script>`,
  ];
  download(view, "html", URL.createObjectURL(new Blob(text, { type: "text/html" })));
}
