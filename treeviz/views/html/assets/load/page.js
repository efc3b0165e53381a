// @ts-check
// Mounts the views of a page, each once, however many copies of this script the page holds.
import { FORMAT } from "../tree/tree.js";
import { mount } from "../tree/mount.js";
import { additions } from "../tree/view.js";

const MOUNTED = Symbol.for("treeviz");
// This script mounts only the hosts that need exactly these modules; another script of the page mounts the others.
const KIND = [FORMAT, ...additions.map(({ name }) => name)].join(" ");

/** The loop is ten times as fast as Uint8Array.from with a function. @param {string} text */
function bytesOf(text) {
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

for (const host of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(`[data-treeviz="${KIND}"]`))) {
  const data = host.querySelector("script");
  if (data && !host[MOUNTED]) {
    host[MOUNTED] = true;
    mount(host, bytesOf(atob(data.textContent ?? "")));
  }
}
