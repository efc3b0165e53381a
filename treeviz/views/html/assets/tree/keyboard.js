// @ts-check
// Keyboard control, following the WAI-ARIA pattern for tree views.

/** @typedef {import("./view.js").View} View */

/** @param {View} view @param {HTMLInputElement} search */
export function listenToKeys(view, search) {
  const { root } = view;
  const typing = typeAhead(view);
  const find = () => (search.focus(), search.select());
  /** Whether the key has a meaning here. */
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const target = /** @type {any} */ (event.target);
    if (isWith(event, "f")) find();
    else if (event.key === "F3") view.search.next(event.shiftKey ? -1 : 1);
    else if (target === search) return onSearchKey(view, search, event);
    else if (target === view.grid.tree) return onTreeKey(view, search, typing, event);
    else if (event.key === "Escape") view.showDetail(-1);
    else return view.grid.head.contains(target) && moveInHead(target, event.key);
    return true;
  };
  // A page of its own has nothing else to search.
  if (root.classList.contains("page"))
    addEventListener("keydown", (event) => isWith(event, "f") && (event.preventDefault(), find()), { signal: view.signal });
  root.addEventListener("keydown", (event) => {
    if (onKey(event)) event.preventDefault();
    else if (isForHost(event)) {
      const { dataset } = root.getRootNode().host;
      delete dataset.lmSuppressShortcuts;
      setTimeout(() => (dataset.lmSuppressShortcuts = "true"));
      return;
    }
    event.stopPropagation();
  });
}

/** The titles are one stop of the Tab key; arrows go from one to the next. @param {any} title @param {string} key */
function moveInHead(title, key) {
  const next = key === "ArrowRight" ? title.nextElementSibling : key === "ArrowLeft" && title.previousElementSibling;
  if (!next) return false;
  title.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
  return true;
}

/** Whether a key that has no meaning here is meant for the notebook around the view, such as Ctrl-S and Shift-Enter. Letters are not: they would be its shortcuts. @param {any} event */
function isForHost(event) {
  const { key, altKey, ctrlKey, metaKey, shiftKey } = event;
  if (event.target.localName === "input" && /^([acvxyz]|Arrow.*|Home|End|Backspace|Delete)$/i.test(key)) return false;
  return altKey || ctrlKey || metaKey || (shiftKey && key === "Enter") || /^F\d/.test(key);
}

const isWith = (event, letter) => (event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === letter;

/** @param {View} view @param {HTMLInputElement} search @param {(letter: string) => void} typing @param {KeyboardEvent} event @returns {boolean} whether the key has a meaning */
function onTreeKey(view, search, typing, event) {
  const { active, rows } = view;
  const { key, shiftKey, altKey } = event;
  const control = event.ctrlKey || event.metaKey;
  const here = rows.index(active);
  const page = view.grid.nInSight - 1;
  const goals = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: rows.count - 1, PageDown: here + page, PageUp: here - page };
  if (altKey) return false;
  if (key in goals) {
    const goal = rows.visible[Math.max(0, Math.min(rows.count - 1, goals[key]))];
    view.go(goal, shiftKey ? "range" : control ? "none" : "one");
  } else if (control) {
    if (!isWith(event, "c") || getSelection()?.toString()) return false;
    view.copy(view.chosen.map((row) => view.tree.expression(row)).join("\n"));
  } else if (key === "ArrowRight") rows.isOpen(active) ? view.go(rows.visible[here + 1]) : view.setOpen(active, true);
  else if (key === "ArrowLeft") rows.isOpen(active) ? view.setOpen(active, false) : active && view.go(view.tree.parent[active]);
  else if (key === "Enter" && shiftKey) return false;
  else if (key === "Enter") rows.hasChildren(active) ? view.toggle(active) : view.go(active);
  else if (key === " ") view.go(active, "add");
  else if (key === "*") openSiblings(view);
  else if (key === "/") search.focus();
  else if (key === "Escape") view.showDetail(-1);
  else if (key.length === 1) typing(key);
  else return false;
  return true;
}

/** @param {View} view @param {HTMLInputElement} search @param {KeyboardEvent} event @returns {boolean} whether the key has a meaning */
function onSearchKey(view, search, event) {
  if (event.key === "Enter") view.search.next(event.shiftKey ? -1 : 1);
  else if (event.key === "ArrowDown") view.grid.tree.focus();
  else if (event.key === "Escape") {
    if (search.value) view.search.run((search.value = ""));
    view.grid.tree.focus();
  } else return false;
  return true;
}

/** Open the active row and its siblings. @param {View} view */
function openSiblings(view) {
  const { tree, rows, active } = view;
  const parent = tree.parent[active];
  const end = parent < 0 ? tree.n : tree.end[parent];
  for (let row = parent + 1; row < end; row = tree.end[row]) rows.opened[row] = 1;
  view.update(active);
}

/** A function that goes to the next row whose key starts with the letters that it was given, or with the last of them. @param {View} view @returns {(letter: string) => void} */
function typeAhead(view) {
  let typed = "";
  let timer;
  return (letter) => {
    clearTimeout(timer);
    timer = setTimeout(() => (typed = ""), 700);
    const { rows, tree, active } = view;
    for (const start of [typed + letter, letter]) {
      typed = start.toLowerCase();
      const from = rows.index(active) + +(typed.length === 1);
      for (let i = 0; i < rows.count; i++) {
        const row = rows.visible[(from + i) % rows.count];
        if (tree.label(row).toLowerCase().replace(/^[.[']+/, "").startsWith(typed)) return view.go(row);
      }
    }
  };
}
