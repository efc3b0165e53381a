// @ts-check
// Saves the explorer as a page: its data, and this module, which mounts the data where no kernel is.
import { downloadPage } from "../tree/exporting.js";
import { FORMAT } from "../tree/tree.js";

/** @param {import("../tree/view.js").View} view */
export async function savePage(view) {
  const { packed } = view.tree;
  const bytes = new Uint8Array(await new Response(packed).arrayBuffer());
  const data = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  downloadPage(
    view,
    `<div class=treeviz data-page data-treeviz="${FORMAT} details"><script type=text/plain>${data}<\/script></div>`,
    `<script>document["treeviz ${FORMAT}"]=(text)=>Uint8Array.from(atob(text),(byte)=>byte.charCodeAt(0))<\/script>`,
    // In a script no end tag of one may stand: this module has none.
    `<script type=module>${globalThis[Symbol.for("treeviz.source")]}<\/script>`,
  );
}
