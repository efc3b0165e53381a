// Renames the variables of a minified script, from stdin to stdout, so that its parts are more alike: it deflates 1 % better.
// terser names variables by their order in a function, so that two equal loops differ where what stands before them does.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter } from "node:path";
import { deflateRawSync } from "node:zlib";

// npx puts the folder with the packages that it was asked for on the path.
const { resolve } = createRequire(import.meta.url);
const { parse } = createRequire(import.meta.url)(resolve("acorn", { paths: process.env.PATH.split(delimiter) }));

const LENGTHS = [4, 5, 7, 10, 16]; // of the pieces of text that should be alike
const N_LETTERS = 24;
// How much more a piece counts that is frequent, in each pass; what deflates best after a pass is kept.
const WEIGHTS = [0.15, 0.15, 0.3, 0.3, 0.05, 0.05, 0.15, 0.3, 0.6, 0.3, 0.15, 0.2, 0.1, 0.4, 0.2, 0.8, 0.3, 0.1, 0.05, 0.2, 0.3, 0.5, 1, 0.3, 0.15, 0.1, 0.2, 0.4, 0.3, 0.6, 0.05, 0.2];

const source = readFileSync(0, "utf8");
const text = Buffer.from(source, "utf16le"); // two bytes for each letter
const variables = [];
const references = [];

class Scope {
  /** @param {Scope | null} parent @param {boolean} isBody of the function whose parameters the parent holds: it can declare none of their names */
  constructor(parent, isBody = false) {
    Object.assign(this, { parent, isBody, declared: new Map() });
  }

  declare({ name }) {
    if (this.declared.has(name)) return;
    // `crossed`: the scopes between the references and the declaration, which cannot declare the name.
    const variable = { name, scope: this, places: [], crossed: new Set(), others: new Set(), isShorthand: false };
    this.declared.set(name, variable);
    variables.push(variable);
  }
}

/** The names that a pattern declares. */
function namesIn(pattern) {
  if (!pattern) return [];
  const { type } = pattern;
  if (type === "Identifier") return [pattern];
  if (type === "ObjectPattern") return pattern.properties.flatMap((each) => namesIn(each.argument ?? each.value));
  if (type === "ArrayPattern") return pattern.elements.flatMap(namesIn);
  return namesIn(type === "AssignmentPattern" ? pattern.left : pattern.argument);
}

function declareAll(statements, scope) {
  for (const each of statements) {
    if (each?.kind === "var") throw new Error("terser is expected to leave no var");
    if (each?.type === "VariableDeclaration") for (const { id } of each.declarations) namesIn(id).forEach((name) => scope.declare(name));
    if (each?.type === "FunctionDeclaration" || each?.type === "ClassDeclaration") scope.declare(each.id);
  }
}

/** Walk a list of statements in a scope of its own. */
function walkBlock(statements, outer, isBody = false) {
  const scope = new Scope(outer, isBody);
  declareAll(statements, scope);
  for (const each of statements) walk(each, scope);
}

function walkFunction(node, outer) {
  if (node.type === "FunctionExpression" && node.id) {
    outer = new Scope(outer);
    outer.declare(node.id);
    references.push({ id: node.id, scope: outer });
  }
  const scope = new Scope(outer);
  for (const each of node.params) namesIn(each).forEach((name) => scope.declare(name));
  for (const each of node.params) walk(each, scope);
  if (node.body.type === "BlockStatement") walkBlock(node.body.body, scope, true);
  else walk(node.body, scope);
}

function walk(node, scope) {
  if (typeof node?.type !== "string") return;
  const { type } = node;
  if (type === "Identifier") references.push({ id: node, scope });
  else if (/Function/.test(type)) {
    if (type === "FunctionDeclaration") references.push({ id: node.id, scope });
    walkFunction(node, scope);
  } else if (type === "BlockStatement") walkBlock(node.body, scope);
  else if (/^For/.test(type)) {
    const inside = new Scope(scope);
    declareAll([node.init ?? node.left], inside);
    walkParts(node, inside);
  } else if (type === "CatchClause") {
    const inside = new Scope(scope);
    namesIn(node.param).forEach((name) => inside.declare(name));
    walk(node.param, inside);
    walkBlock(node.body.body, inside, true);
  } else if (type === "Property" && node.shorthand) {
    references.push({ id: node.value.left ?? node.value, scope, isShorthand: true });
    walk(node.value.right, scope);
  } else if (/^(MemberExpression|Property|MethodDefinition|PropertyDefinition)$/.test(type)) {
    walk(node.object ?? node.value, scope);
    const name = node.property ?? node.key;
    if (node.computed) walk(name, scope);
  } else if (/^(SwitchStatement|Labeled|StaticBlock|Break|Continue|Import|Export)/.test(type) && (node.label !== null || !/^[BC]/.test(type))) throw new Error(`${type} is not expected here`);
  else walkParts(node, scope);
}

function walkParts(node, scope) {
  for (const part of Object.values(node)) for (const each of [part].flat()) walk(each, scope);
}

/** Which variables cannot have the same name. */
function findOthers() {
  const free = new Map();
  for (const { id, scope, isShorthand } of references) {
    let at = scope;
    while (at && !at.declared.has(id.name)) at = at.parent;
    if (!at && !free.has(id.name)) free.set(id.name, { name: id.name, scope: null, places: [], crossed: new Set(), others: new Set() });
    const variable = at ? at.declared.get(id.name) : free.get(id.name);
    for (let inner = scope; inner && inner !== variable.scope; inner = inner.parent) variable.crossed.add(inner);
    variable.places.push(id.start);
    variable.isShorthand ||= isShorthand;
  }
  const keepApart = (one, scope) => {
    for (const other of scope?.declared.values() ?? [])
      if (one !== other) {
        one.others.add(other);
        other.others.add(one);
      }
  };
  for (const each of [...variables, ...free.values()]) {
    keepApart(each, each.scope);
    if (each.scope?.isBody) keepApart(each, each.scope.parent);
    for (const scope of each.crossed) keepApart(each, scope);
    for (const other of each.others) if (other.name === each.name) throw new Error(`${each.name} is understood wrongly`);
  }
}

walkBlock(parse(source, { ecmaVersion: 2022 }).body, null);
findOthers();

const frequent = new Map();
const chosen = variables.filter(({ name, places, isShorthand }) => name.length === 1 && places.length && !isShorthand);
for (const { name, places } of chosen) frequent.set(name, (frequent.get(name) ?? 0) + places.length);
const usual = [...frequent].sort((a, b) => b[1] - a[1]).slice(0, N_LETTERS).map(([letter]) => letter);

// How often each piece of text occurs.
const counts = new Map();
const pieceAt = ([start, length]) => text.ucs2Slice(2 * start, 2 * (start + length));
const add = (pieces, n) => {
  for (const piece of pieces.map(pieceAt)) counts.set(piece, (counts.get(piece) ?? 0) + n);
};
for (const length of LENGTHS) for (let start = 0; start + length <= source.length; start++) add([[start, length]], 1);

/** The pieces of text that hold a variable, each once. */
function piecesWith({ places }) {
  return LENGTHS.flatMap((length) => {
    const starts = new Set(places.flatMap((place) => Array.from({ length }, (_, i) => place - i)));
    return [...starts].filter((start) => start >= 0 && start + length <= source.length).map((start) => [start, length]);
  });
}

chosen.sort((a, b) => a.places[0] - b.places[0]);
let [shortest, least] = [source, Infinity];
for (const weight of WEIGHTS) {
  for (const variable of chosen) {
    const pieces = piecesWith(variable);
    const taken = new Set([...variable.others].map(({ name }) => name));
    const write = (name) => variable.places.forEach((place) => text.writeUInt16LE(name.charCodeAt(0), 2 * place));
    add(pieces, -1);
    let [best, most] = [variable.name, -1];
    for (const name of new Set([variable.name, ...usual])) {
      if (taken.has(name)) continue;
      write(name);
      let alike = 0;
      for (const piece of pieces) {
        const n = counts.get(pieceAt(piece));
        if (n) alike += 1 + weight * Math.log2(n);
      }
      if (alike > most) [best, most] = [name, alike];
    }
    write((variable.name = best));
    add(pieces, 1);
  }
  const renamed = text.toString("utf16le");
  const size = deflateRawSync(renamed, { level: 9 }).length;
  if (size < least) [shortest, least] = [renamed, size];
}
process.stdout.write(shortest);
