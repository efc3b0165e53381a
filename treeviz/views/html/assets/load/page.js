// @ts-check
// Mounts the views of a page, each once, however many copies of this script the page holds.
import { FORMAT } from "../tree/tree.js";
import { mount } from "../tree/mount.js";
import { additions } from "../tree/view.js";

const MOUNTED = Symbol.for("treeviz");
// This script mounts only the hosts that need its part of the front end, which the last addition names; another script of
// the page mounts the others.
const KIND = [FORMAT, ...additions.slice(-1).map(({ name }) => name)].join(" ");

for (const host of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(`[data-treeviz="${KIND}"]`))) {
  // The script after a host has page_loader.js put the bytes there.
  const data = /** @type {any} */ (host.querySelector("script"));
  if (data?.bytes && !host[MOUNTED]) {
    host[MOUNTED] = true;
    mount(host, data.bytes());
  }
}
