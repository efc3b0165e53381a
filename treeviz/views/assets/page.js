// @ts-check
// Bring the views of a page to life: each once, however many copies of this script the page holds.
import { FORMAT } from "./payload.js";
import { mount } from "./treeviz.js";
import { additions } from "./view.js";

const MOUNTED = Symbol.for("treeviz");
// Which of the hosts this script can bring to life, and need nothing less.
const KIND = [FORMAT, ...additions.map(({ name }) => name)].join(" ");

/** A call for each character would be ten times as slow. @param {string} text */
function bytes_of(text) {
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

for (const host of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(`[data-treeviz="${KIND}"]`))) {
  const data = host.querySelector("script");
  if (data && !host[MOUNTED]) {
    host[MOUNTED] = true;
    mount(host, bytes_of(atob(data.textContent ?? "")));
  }
}
