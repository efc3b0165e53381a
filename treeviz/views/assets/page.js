// @ts-check
// Bring the views of a page to life: each once, however many copies of this script the page holds.
import { FORMAT } from "./payload.js";
import { mount } from "./treeviz.js";

const MOUNTED = Symbol.for("treeviz");

for (const host of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(`[data-treeviz="${FORMAT}"]`))) {
  const data = host.querySelector("script");
  if (data && !host[MOUNTED]) {
    host[MOUNTED] = true;
    mount(host, Uint8Array.from(atob(data.textContent ?? ""), (character) => character.charCodeAt(0)));
  }
}
