// @ts-check
// Mounts the views of a page, each once, however many copies of this script the page holds. A page that a widget saved has the
// whole explorer.
import { FORMAT } from "../tree/tree.js";
import { mount } from "../tree/mount.js";
import { additions } from "../tree/view.js";

// Of the document, what page_loader.js reads data with; of a host, that it is mounted. Another release may read another way.
const OURS = `treeviz ${FORMAT}`;
// This script mounts only the hosts that need its part of the front end, which the last addition names; another script of
// the page mounts the others.
const KIND = [FORMAT, ...additions.slice(-1).map(({ name }) => name)].join(" ");

for (const host of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(`[data-treeviz="${KIND}"]`))) {
  const data = host.querySelector("script");
  if (data && !host[OURS]) {
    host[OURS] = true;
    mount(host, /** @type {any} */ (document)[OURS](data.text));
  }
}
