"""Handlers of the walk, chosen once per class, and the facts of nodes and leaves, with the help of describers."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress, repeat
from math import inf
from operator import is_
from typing import Any, NamedTuple

import jax

from treeviz.tree.describers import Describer, Description, Overflow, by_wrapping_key, describer_of
from treeviz.tree.facts import Facts, Note
from treeviz.tree.keys import MISSING, Key, KeyTable, index_key, label_text, stored_attributes
from treeviz.tree.leaves import ONLY_A_KIND, FactTable, array_like_facts, array_like_reader, opaque_facts
from treeviz.tree.level import BUILTIN_LEVELS, Flattened, Level, custom_level, flatten_of, treedef_level
from treeviz.tree.opaque import Inside, captured, captured_values, contents, describe_function, static_text
from treeviz.tree.runtime import jax_is_imported
from treeviz.tree.static import Fields, sameness, static_note, stored_values
from treeviz.tree.text import class_name, error_text, guarded, has_base, is_any, module_name, value_text, visible

# Facts of nodes. Equal nodes share one record.


class NodeFacts:
    """The facts of the nodes of one walk that are not builtin containers."""

    def __init__(self, keys: KeyTable, facts: FactTable, flattened: dict[int, tuple[Any, Flattened]]) -> None:
        self._keys, self._facts, self._flattened = keys, facts, flattened
        self._notes = facts.static.notes
        self._by_class: dict[int, Facts] = {}  # by the class's id
        self._codes: dict[tuple | None, tuple[int, list[Note]]] = {}  # of shared facts, and their notes
        self._kept: list[Any] = []  # keeps objects alive, so that no id is reused

    def code(self, node: Any, description: Description | None, level: Level) -> int:
        """The code of the facts of a node, shared by equal nodes. Its description gives at most a kind."""
        sharing_key, values = self._sharing_key(node, description, level)
        if sharing_key in self._codes:
            code, notes = self._codes[sharing_key]
            self._notes += notes
            return code
        n_before = len(self._notes)
        facts = self.of_node(node, level)
        code = self._facts.code(facts if description is None else self._facts.with_description(facts, description))
        if sharing_key is not None and not any(name.startswith("aux") for name, _ in facts.static):
            self._codes[sharing_key] = code, self._notes[n_before:]
            self._kept.append(values)
        return code

    def similar(self, nodes: list[Any], handler: Handler, key_codes: list[int], code: int) -> list[list[Any]]:
        """The children of the first nodes of a class that surely have these codes of keys and facts, and no notes."""
        flatten: Any = handler.flatten
        describer, found, names, known, same = handler.describer, [], (), None, None
        description: Any = None if describer is None else MISSING
        for node in nodes:
            flattened, stored = flatten(node), stored_attributes(node)
            pairs, aux = flattened
            if describer is not None and (other := describer(node)) is not description:
                if not isinstance(other, Description) or other[1:-1] != ONLY_A_KIND:
                    break
                description, known = other, None
            if self._keys.attributes(stored, pairs) != key_codes:
                break
            values = [len(aux) if type(aux) is tuple else aux, *map(stored.get, names, repeat(MISSING))]
            if known is None or not (all(map(is_, values, known)) or sameness(values) == same):
                sharing_key = self._sharing_key(node, description, Level([], key_codes, aux))[0]
                if self._codes.get(sharing_key) != (code, []):
                    break
                names = self._fields(node, Level([], key_codes)).names  # type: ignore[union-attr]
                known = [values[0], *map(stored.get, names)] if stored.keys() >= {*names} else None
                same = known and sameness(known)
            found.append([kid for _, kid in pairs])
        else:
            return found
        self._flattened[id(node)] = node, flattened  # for the walk
        return found

    def _sharing_key(self, node: Any, description: Description | None, level: Level) -> tuple[tuple | None, list[Any]]:
        """A key that nodes with equal facts share, and their static values; None if the facts are not shared."""
        fields, aux = self._fields(node, level), level.aux
        if fields is None or fields.unnamed or aux is node or self.of_class(node).kind != "node":
            return None, []
        if type(aux) is tuple and len(aux) < len(fields.names):  # something is dropped
            return None, []
        kind = "" if description is None else description.kind
        if type(kind) is not str:
            return None, []
        values = stored_values(node, fields.names)
        return (id(type(node)), id(fields), kind, *sameness(values)), values

    def of_node(self, node: Any, level: Level) -> Facts:
        facts = self.of_class(node)
        if facts.kind == "closure":
            self._notes += filter(None, [static_note(captured_values(node.func), "a function")])
            return facts._replace(text=describe_function(node.func), static=captured(node.func))
        if facts.kind == "namedtuple" and level.aux is None and len(level.children) == tuple.__len__(node):
            return facts
        if level.aux is node and not level.children:
            self._notes += filter(None, [static_note(contents(node), "static data")])
            return facts._replace(kind="static", text=static_text(node))
        return facts._replace(static=self._facts.static.of_node(node, level, self._fields(node, level)))

    def _fields(self, node: Any, level: Level) -> Fields | None:
        return self._facts.static.fields(type(node), level, self._keys)

    def of_class(self, node: Any) -> Facts:
        """The facts that follow from the class alone."""
        cls = type(node)
        facts = self._by_class.get(id(cls))
        if facts is None:
            self._kept.append(cls)
            is_named_tuple = has_base(cls, tuple) and hasattr(cls, "_fields")
            kind = "closure" if has_base(cls, jax.tree_util.Partial) else "namedtuple" if is_named_tuple else "node"
            facts = self._by_class[id(cls)] = Facts(kind, class_name(cls), False, module=module_name(cls))
        return facts


_MOST_INLINED = 2  # boxes in one row: a box may contain itself
ALONE = _MOST_INLINED  # of the root, which has no key that the leaf's key could be appended to
_BUILTIN_KINDS: dict[type, str] = {list: "list", tuple: "tuple", type(None): "none"}  # the others are dicts


class Handler(NamedTuple):
    """How the walk handles the objects of one class."""

    level: Callable[[Any, KeyTable], Level | None] | None  # flattens an object by one level; None for leaves
    describe: Callable[[Any], int]  # returns the code of a leaf's facts
    has_identity: bool  # note repeats of one object
    describer: Describer | None = None
    is_builtin: bool = False  # a builtin container, whose facts follow from the class
    flatten: Callable[[Any], Flattened | None] | None = None  # of a registered class


class Inlined(NamedTuple):
    """A leaf that shares the row of the box around it."""

    leaf: Any
    key: Key  # from the box to the leaf
    has_identity: bool


class Describers:
    """The classes, keys and facts of one walk.

    Args:
      flattened: From the first of two walks. None: this is the first, and a node of a registered class with more than
        `max_rows` children raises `Overflow`.

    Attributes:
      flattened: Nodes that were flattened before they are entered, and the results, by id.
    """

    def __init__(self, max_rows: int, flattened: dict[int, tuple[Any, Flattened]] | None = None) -> None:
        self._widest = max_rows if flattened is None else inf
        self.flattened = {} if flattened is None else flattened
        self.keys = KeyTable(max_rows)
        self.facts = FactTable()
        self.notes = self.facts.static.notes  # about the object described last; the walk collects them
        self.handlers: dict[int, Handler] = {}  # by the class's id
        self.nodes = NodeFacts(self.keys, self.facts, self.flattened)
        self._inside = Inside()
        self._classes: list[type] = []  # kept alive, so that no id is reused

    def handler(self, node: Any) -> Handler:
        cls = type(node)
        handler = self.handlers.get(id(cls))
        if handler is None:
            self._classes.append(cls)
            handler = self.handlers[id(cls)] = self._new_handler(node, cls)
        return handler

    def handle(self, cls: type, handler: Handler) -> None:
        """Override how this walk handles the objects of a class."""
        self._classes.append(cls)
        self.handlers[id(cls)] = handler

    def handle_treedefs(self) -> None:
        self.handle(jax.tree_util.PyTreeDef, Handler(treedef_level, self._placeholder, False))

    def trouble(self, node: Any, action: str, error: BaseException, *, is_leaf: bool) -> int:
        """The code of the facts of an object that raised, with the error as a note."""
        self.notes.append(Note("error", f"{action}: {error_text(error)}"))
        cls = type(node)
        return self.facts.code(Facts("error", class_name(cls), is_leaf, int(is_leaf), module=module_name(cls)))

    def node(self, node: Any, handler: Handler, level: Level, n_inlined: int) -> tuple[int, Level, Inlined | None]:
        """The code of a node's facts, and its level without hidden children.

        Args:
          n_inlined: The number of boxes around the node that may share its row.
        """
        cls = type(node)
        if handler.level is treedef_level:
            cls = level.aux[0]
            kind = _BUILTIN_KINDS.get(cls, "dict") if is_any(cls, BUILTIN_LEVELS) else "node"
            return self.facts.code(Facts(kind, class_name(cls), False)), level, None
        try:
            if handler.describer is not None:
                return self._by_description(node, _described(handler.describer, node), level, n_inlined)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._note_error(error)
        return self.nodes.code(node, None, level), level, None

    def declared_leaf(self, node: Any) -> int:
        """Describe a node that the caller's `is_leaf` declares a leaf."""
        cls, text = type(node), value_text(node)
        return self.facts.code(Facts("opaque", class_name(cls), True, 1, text=text, module=module_name(cls)))

    def _new_handler(self, node: Any, cls: type) -> Handler:
        if is_any(cls, BUILTIN_LEVELS):
            code = self.facts.code(Facts(_BUILTIN_KINDS.get(cls, "dict"), cls.__name__, False))
            return Handler(BUILTIN_LEVELS[cls], lambda _: code, has_identity=True, is_builtin=True)
        describer = describer_of(cls)
        # An exception is raised again when the walk enters the node, and is then shown in its row.
        # Generators are leaves: jax 0.10 warns when it flattens one, and later releases will raise.
        # Before JAX is imported, no class is registered.
        flatten, flattened = flatten_of(cls) if jax_is_imported() else _leaf, None
        if id(node) in self.flattened:
            flattened = self.flattened[id(node)][1]
        elif cls is not types.GeneratorType:
            flattened = guarded(partial(flatten, node), lambda _: ())
        if flattened:
            self.flattened[id(node)] = node, flattened
        if flattened is not None:
            return Handler(partial(self._level, flatten), self._placeholder, True, describer, flatten=flatten)
        plain, has_identity = self.facts.describer(cls)
        describe = self._opaque(node, cls) if plain == self.facts.opaque else plain
        if describer is None:
            return Handler(None, describe, has_identity)

        def described_leaf(leaf: Any) -> int:
            description = _described(describer, leaf)
            facts = self.facts.with_description(self.facts.facts[plain(leaf)], description)
            facts = _with_axes(facts, description.axes)
            if facts.kind == "opaque" and not description.transparent:
                facts = self._with_contents(facts, leaf)
            return self.facts.code(facts)

        def describe_by_describer(leaf: Any) -> int:
            code = guarded(lambda: described_leaf(leaf), self._note_error)
            return describe(leaf) if code is None else code

        return Handler(None, describe_by_describer, True)

    def _level(self, flatten: Callable[[Any], Flattened | None], node: Any, keys: KeyTable) -> Level | None:
        flattened_before = self.flattened.pop(id(node), None)
        flattened = flatten(node) if flattened_before is None else flattened_before[1]
        if flattened is not None and len(flattened[0]) > self._widest:
            self.flattened[id(node)] = node, flattened
            raise Overflow
        return None if flattened is None else custom_level(node, keys, flattened)

    def _placeholder(self, _: Any) -> int:
        return self.facts.code(Facts("placeholder", "*", True, 1))

    def _opaque(self, first: Any, cls: type) -> Callable[[Any], int]:
        """Returns a describer for objects of a class unknown to JAX, by shape and dtype or by their contents."""
        read, plain = array_like_reader(cls), opaque_facts(first)

        def describe(leaf: Any) -> int:
            array_like = read(leaf)
            # If the first object of a class has no text of its own, none has.
            facts = array_like_facts(leaf, array_like) if array_like else opaque_facts(leaf) if plain.text else plain
            return self.facts.code(self._with_contents(facts, leaf))

        return describe

    def _with_contents(self, facts: Facts, leaf: Any) -> Facts:
        """The facts with the contents of an opaque leaf, unless they say enough; notes hidden arrays."""
        note = self._inside.note(leaf)
        if note is not None:
            self.notes.append(note)
        if note is not None and facts.kind == "shape only":  # a wrapper of arrays
            facts = facts._replace(kind="tensor")
        if facts.text or facts.static:
            return facts
        return facts._replace(inside=self._inside.fields(leaf, facts.shape is not None))

    def _note_error(self, error: BaseException) -> None:
        self.notes.append(Note("error", f"the describer of this class raised: {error_text(error)}"))

    def _by_description(
        self, node: Any, description: Description, level: Level, n_inlined: int
    ) -> tuple[int, Level, Inlined | None]:
        if description[1:-1] == ONLY_A_KIND:
            return self.nodes.code(node, description, level), level, None
        is_complete = description.kind and description.static is not None
        facts = self.nodes.of_class(node) if is_complete else self.nodes.of_node(node, level)
        facts = self.facts.with_description(facts, description)
        if description.labels is not None and description.inline:
            level = self._below(level)
        if description.labels is not None or description.step is not None or description.hide:
            level = self._described_level(level, description)
        if description.inline and n_inlined < _MOST_INLINED and len(level.children) == 1 and level.keys is not None:
            child, key = level.children[0], self.keys.keys[level.keys[0]]
            handler, code, inlined = self.handler(child), 0, None
            if handler.level is None:
                code, inlined = handler.describe(child), Inlined(child, key, handler.has_identity)
            elif handler.describer is not None and (below := handler.level(child, self.keys)) is not None:
                n_notes = len(self.notes)
                code, _, inlined = self.node(child, handler, below, n_inlined + 1)
                if inlined is None:
                    del self.notes[n_notes:]  # the walk describes it again
                else:
                    inlined = inlined._replace(key=key.into(inlined.key))
            if inlined is not None:
                inner = self.facts.facts[code]
                text = "  ".join(filter(None, (inner.text, facts.text)))
                facts = inner._replace(type=facts.type, module=facts.module, text=text, static=facts.static)
                facts = _with_axes(facts, description.axes)
                return self.facts.code(facts), Level([], None), inlined
        return self.facts.code(_with_axes(facts, description.axes)), level, None

    def _below(self, level: Level) -> Level:
        """The level of the only child, with the keys from the node."""
        (child,), outer = level.children, self.keys.keys[(level.keys or [0])[0]]
        below: Any = self.handler(child).level(child, self.keys)  # type: ignore[misc]
        codes = below.keys or [0] * len(below.children)
        inner = [self.keys.keys[code] if code else index_key(i) for i, code in enumerate(codes)]
        return level._replace(children=below.children, keys=[self.keys.code(outer.into(key)) for key in inner])

    def _described_level(self, level: Level, description: Description) -> Level:
        """The level without hidden children, with the labels and steps of the description."""
        keys = [] if level.keys is None else [self.keys.keys[code] for code in level.keys]
        if description.labels is not None:
            pairs = zip(keys, description.labels, strict=True)
            keys = [key._replace(label=label_text(name), segment=visible(name)) for key, name in pairs]
        if description.step is not None:
            is_wrapping = description.step is by_wrapping_key
            for i, key in enumerate(keys):
                step = description.step(key.keystr)
                if step is not None:
                    keys[i] = key._replace(steps=((step, i) if is_wrapping else step,))
        children = level.children
        if description.hide:
            shown = [
                key.segment not in description.hide or not _is_empty(self, kid)
                for key, kid in zip(keys, children, strict=True)
            ]
            keys, children = list(compress(keys, shown)), list(compress(children, shown))
        return level._replace(children=children, keys=[self.keys.code(key) for key in keys])


def _with_axes(facts: Facts, axes: Sequence[str]) -> Facts:
    """The facts with the names of axes, in the text if they do not fit the shape."""
    names = tuple([visible(name, 40) for name in axes])
    if not any(names) or len(names) == len(facts.shape or ()):
        return facts._replace(axes=names) if any(names) else facts
    return facts._replace(text="  ".join(filter(None, (facts.text, f"axes=({', '.join(n or '·' for n in names)})"))))


def _leaf(_: Any) -> None:
    return None


def _described(describer: Describer, node: Any) -> Description:
    description = describer(node)
    if not isinstance(description, Description):
        raise TypeError(f"a describer must return a treeviz.Description, not {value_text(description)}")
    return description


def _is_empty(describers: Describers, node: Any) -> bool:
    """Whether JAX sees the object as a node without children."""
    handler = describers.handler(node)
    level = None if handler.level is None else handler.level(node, describers.keys)
    return level is not None and not level.children
