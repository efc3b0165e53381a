// @ts-check
// The pages of `treeviz serve`: the list of runs and checkpoints, and one of them, which follows its file by an event stream.
import { bytesText, countText } from "../tree/numbers.js";
import { followTheme, h } from "../tree/dom.js";
// @ts-ignore bundle.py puts the style sheets there as a string.
import { STYLES } from "./site.css";

const LIST_MS = 2000;
const AGES = /** @type {[number, string][]} */ ([[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]);

/** @typedef {{key: string, kind: "run" | "checkpoint", written: number, bytes: number, isOld: boolean, name?: string, steps?: number, step?: string, scalars?: string[], findings?: [string, string][], nFindings?: number}} Item */

/** @param {string} key */
const addressed = (key) => key.split("/").map(encodeURIComponent).join("/");

/** How long ago: "3 min ago". @param {number} seconds since 1970 */
function ageText(seconds) {
  const age = Math.max(0, Date.now() / 1000 - seconds);
  const [unit, name] = AGES.find(([least]) => age >= 2 * least) ?? [1, "s"];
  return age < 2 ? "now" : `${Math.floor(age / unit)} ${name} ago`;
}

/** @param {number} n @param {string} noun */
const counted = (n, noun) => `${countText(n)} ${noun}${n === 1 ? "" : "s"}`;

/** Call a function now and then, while the page is in sight. @param {() => Promise<void>} update @param {(error: any) => void} fail */
async function repeat(update, fail) {
  for (;;) {
    if (document.visibilityState === "visible") await update().catch(fail);
    await new Promise((resolve) => setTimeout(resolve, LIST_MS));
  }
}

/** @param {string} url @param {RequestInit} [options] */
async function get(url, options) {
  const response = await fetch(url, options);
  if (!response.ok) throw new Error((await response.text()) || response.statusText);
  return response;
}

// The list

/** A row of the list, made once for each item. */
class ItemRow {
  /** @param {Item} item @param {(key: string, isChosen: boolean) => void} choose */
  constructor(item, choose) {
    this.box = h("input", { type: "checkbox", "aria-label": `Choose ${item.key}`, change: () => choose(item.key, this.box.checked) });
    this.steps = h("td", { class: "number" });
    this.scalars = h("td", {});
    this.finding = h("td", {});
    this.written = h("td", { class: "number" });
    const place = item.key.lastIndexOf("/") + 1;
    const link = h("a", { href: `/at/${addressed(item.key)}` }, h("span", { class: "folder" }, item.key.slice(0, place)), item.key.slice(place).replace(/\.treeviz$/, ""));
    this.name = h("small", {});
    this.element = h("tr", {}, h("td", {}, item.kind === "run" ? this.box : ""), h("td", { class: "name" }, link, this.name), this.steps, this.scalars, this.finding, this.written);
  }

  /** @param {Item} item */
  show(item) {
    const [severity, sentence] = item.findings?.[0] ?? [];
    this.element.dataset.severity = severity ?? "";
    this.name.textContent = item.name ?? "";
    this.steps.textContent = item.kind === "checkpoint" ? (item.bytes ? bytesText(item.bytes) : "") : item.steps === undefined ? (item.nFindings ? "" : "…") : countText(item.steps);
    this.scalars.textContent = item.scalars?.join(" · ") ?? "";
    this.finding.textContent = sentence ?? (item.nFindings === 0 ? "no findings" : "");
    this.finding.title = item.findings?.map(([, text]) => text).join("\n") ?? "";
    this.written.textContent = item.written ? ageText(item.written) : "";
    this.written.title = item.written ? new Date(1000 * item.written).toLocaleString() : "";
  }
}

/** @param {HTMLElement} root */
function showList(root) {
  /** @type {Map<string, ItemRow>} */
  const rows = new Map();
  /** @type {string[]} */
  let chosen = [];
  const body = h("tbody", {});
  const status = h("p", { role: "status" }, "reading …");
  const filter = h("input", { type: "search", placeholder: "Search names", "aria-label": "Search names", input: () => narrow() });
  const compare = h("a", { class: "button" });
  const narrow = () => {
    for (const [key, row] of rows) row.element.hidden = !key.toLowerCase().includes(filter.value.toLowerCase());
  };
  const showChosen = () => {
    for (const [key, row] of rows) row.box.disabled = chosen.length === 2 && !chosen.includes(key);
    const [left, right] = chosen;
    compare.textContent = right ? "Compare the two" : left ? "Choose another run to compare" : "Choose two runs to compare";
    compare.toggleAttribute("data-off", !right);
    if (right) compare.href = `/two?${new URLSearchParams({ left, right })}`;
    else compare.removeAttribute("href");
  };
  const titles = ["", "name", "steps", "newest scalars", "worst finding", "written"].map((title) => h("th", { scope: "col" }, title));
  root.append(h("div", { class: "bar" }, h("h1", {}, "treeviz"), filter, h("span", { class: "gap" }), compare), h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ...titles)), body)), status);
  showChosen();
  repeat(
    async () => {
      /** @type {Item[]} */
      const items = await (await get("/list")).json();
      for (const key of rows.keys()) if (!items.some((item) => item.key === key)) rows.delete(key);
      for (const item of items) {
        const row = rows.get(item.key) ?? new ItemRow(item, (key, isChosen) => ((chosen = isChosen ? [...chosen, key] : chosen.filter((other) => other !== key)), showChosen()));
        rows.set(item.key, row);
        row.show(item);
      }
      const elements = items.map(({ key }) => /** @type {ItemRow} */ (rows.get(key)).element);
      // A row that moves loses the focus, so only a new order moves them.
      if (elements.some((element, i) => element !== body.children[i]) || body.children.length > elements.length) body.replaceChildren(...elements);
      narrow();
      showChosen();
      const nRuns = items.filter(({ kind }) => kind === "run").length;
      status.textContent = items.length ? `${counted(nRuns, "run")}, ${counted(items.length - nRuns, "checkpoint")}` : "There is no run and no checkpoint here yet. inspector.keep(\"run.treeviz\") writes one.";
    },
    (error) => (status.textContent = `The server does not answer: ${error.message}`),
  );
}

// One of them

/** The model that the explorer knows from a notebook: traits, and messages to and from Python. */
class Served {
  /** @param {string} path of an item, or the query of two runs */
  constructor(path) {
    this.path = path;
    /** @type {Record<string, any>} */
    this.traits = { query: "", selection: [], value: "", _changes: null, _version: -1 };
    /** @type {Map<string, Function[]>} */
    this.listeners = new Map();
    /** What came is taken in its order, also while a tree is fetched. */
    this.last = Promise.resolve();
  }

  get(name) {
    return this.traits[name];
  }

  set(name, value) {
    this.traits[name] = value;
    this.emit(`change:${name}`);
  }

  save_changes() {}

  on(event, listener) {
    this.listeners.set(event, [...(this.listeners.get(event) ?? []), listener]);
  }

  off(event, listener) {
    this.listeners.set(event, (this.listeners.get(event) ?? []).filter((other) => other !== listener));
  }

  emit(event, ...details) {
    for (const listener of this.listeners.get(event) ?? []) listener(...details);
  }

  send(content) {
    if (content.op === "whole" && !content.numbers.length) return this.reload(); // what this page missed, the others have
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) };
    get(`/ask${this.path}`, options)
      .then(async (response) => response.status === 200 && this.take(await response.json()))
      .catch((error) => content.op !== "cancel" && this.emit("msg:custom", { op: "answer", id: content.id, error: error.message }, []));
  }

  /** @param {{content: any, buffers: string[]}} message */
  take({ content, buffers }) {
    this.emit("msg:custom", content, buffers.map((text) => new DataView(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer)));
  }

  /** Fetch the tree anew, after what has come. */
  reload() {
    this.last = this.last.then(() => this.load()).catch(() => {});
  }

  /** Fetch the tree. */
  async load() {
    const bytes = await (await get(`/tree${this.path}`)).arrayBuffer();
    const end = new Uint8Array(bytes).indexOf(10);
    const news = { ...JSON.parse(new TextDecoder().decode(bytes.slice(0, end))), _packed: new DataView(bytes, end + 1) };
    if (news._version === this.traits._version) return;
    // What is open at first; later that is the reader's.
    if (this.traits.expanded) delete news.expanded;
    Object.assign(this.traits, news);
    for (const name of Object.keys(news)) this.emit(`change:${name}`);
  }

  /** @param {string} kind @param {any} data */
  onEvent(kind, data) {
    this.last = this.last.then(async () => {
      if (kind === "message") this.take(data);
      else if (kind === "status") this.set("_live", data.content.status);
      else if (data.content.version > this.traits._version) await this.load();
    }).catch(() => {});
  }
}

/** @param {HTMLElement} root @param {string} name @param {string} path */
async function showOne(root, name, path) {
  const model = new Served(path);
  const status = h("span", { role: "status", class: "trouble" });
  // Beside the root, whose style is not that of the view.
  const place = h("div", {});
  document.querySelector("main").append(place);
  root.append(h("nav", { class: "bar" }, h("a", { href: "/" }, "All runs"), h("b", {}, name), status));
  document.title = `${name} · treeviz`;
  try {
    await model.load();
  } catch (error) {
    status.textContent = /** @type {Error} */ (error).message;
    return;
  }
  const { default: explorer } = await import(/** @type {any} */ ("/assets/explorer.js"));
  explorer.initialize({ model });
  explorer.render({ model, el: place });
  place.firstElementChild.dataset.page = "";
  if (!model.get("_live").state && path[0] === "/") return; // a checkpoint does not change
  follow(path, (kind, text) => {
    if (kind === "trouble") status.textContent = JSON.parse(text).content.text;
    else if (kind === "lost") status.textContent = "The server does not answer. The page shows what it had.";
    else if (kind !== "missed") model.onEvent(kind, JSON.parse(text));
    else {
      status.textContent = "";
      model.reload();
    }
  });
}

/** Pass on the events of an item while the page is in sight. A browser opens six connections to a server, so one of the pages that show the item has one, and passes events on to the others. @param {string} path @param {(kind: string, text: string) => void} take */
function follow(path, take) {
  const channel = new BroadcastChannel(`treeviz ${path}`);
  channel.onmessage = ({ data: [kind, text] }) => take(kind, text);
  const tell = (kind, text) => {
    channel.postMessage([kind, text]);
    take(kind, text);
  };
  const connect = (resolve, signal) => {
    const events = new EventSource(`/events${path}`);
    for (const kind of ["message", "status", "tree", "trouble", "missed"]) events.addEventListener(kind, (event) => tell(kind, /** @type {MessageEvent} */ (event).data));
    events.onerror = (event) => event instanceof MessageEvent || tell("lost", "");
    events.onopen = () => tell("missed", "");
    signal.addEventListener("abort", () => (events.close(), resolve()));
  };
  let isInSight = new AbortController();
  const onChange = () => {
    isInSight.abort();
    if (document.visibilityState === "hidden") return;
    const { signal } = (isInSight = new AbortController());
    navigator.locks.request(channel.name, { signal }, () => new Promise((resolve) => connect(resolve, signal))).catch(() => {});
  };
  document.addEventListener("visibilitychange", onChange);
  onChange();
}

function start() {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(STYLES);
  const frame = h("div", {});
  const root = h("div", { class: "treeviz site" });
  document.querySelector("main").append(frame);
  const shadow = frame.attachShadow({ mode: "open" });
  shadow.adoptedStyleSheets = [sheet];
  followTheme(frame, root, new AbortController().signal);
  shadow.append(root);
  const key = location.pathname.startsWith("/at/") && decodeURIComponent(location.pathname).slice("/at/".length);
  const two = new URLSearchParams(location.search);
  const names = key ? [key] : [two.get("left") ?? "", two.get("right") ?? ""];
  const name = names.map((text) => text.replace(/\.treeviz$/, "")).join(" and ");
  if (key) showOne(root, name, `/${addressed(key)}`);
  else if (location.pathname === "/two") showOne(root, name, location.search);
  else showList(root);
}

queueMicrotask(start); // bundle.py puts the style sheets at the end of the module
