"""Decide, once for each class, what the walk does with its objects, and describe its nodes."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

from jax import tree_util

from treeviz.tree.functions import captured, describe_function
from treeviz.tree.keys import Key, KeyTable
from treeviz.tree.leaves import ONLY_A_KIND, FactTable
from treeviz.tree.level import BUILTIN_LEVELS, Level, level_of, one_level
from treeviz.tree.looks import Describer, Look, describer_of
from treeviz.tree.opaque import arrays_inside
from treeviz.tree.quote import class_name, error_text, guarded, has_base, module_name, value_text, visible
from treeviz.tree.static import sameness, static_text, stored_values
from treeviz.tree.table import Facts, Note
from treeviz.tree.treedef import treedef_level

_BUILTIN_KINDS = {list: "list", tuple: "tuple", type(None): "none"}  # all others are dicts


class Handler(NamedTuple):
    """What the walk does with the objects of one class."""

    level: Callable[[Any, KeyTable], Level | None] | None  # how to look one level in; None: a leaf
    describe: Callable[[Any], int]  # the code of a leaf's facts
    has_identity: bool  # whether the same object in two places is worth a badge
    look: Describer | None = None
    is_builtin: bool = False  # a container of Python: all look the same


class Inlined(NamedTuple):
    """A box and the leaf in it, which share a row."""

    leaf: Any
    key: Key  # of the leaf in the box
    has_identity: bool


class Describers:
    """What one walk knows of classes, keys and facts."""

    def __init__(self) -> None:
        self.keys = KeyTable()
        self.facts = FactTable()
        self.notes: list[Note] = []  # on the object that was described last; the walk takes them
        self.handlers: dict[int, Handler] = {}  # by the id of the class
        self._by_class: dict[int, Facts] = {}  # by the id of the class
        self._codes: dict[tuple, int] = {}  # of the facts of nodes that look alike
        self._classes: list[type] = []  # kept, so that no id of theirs is used again
        self._kept: list[Any] = []  # for the same reason

    def handler(self, thing: Any) -> Handler:
        cls = type(thing)
        handler = self.handlers.get(id(cls))
        if handler is None:
            self._classes.append(cls)
            handler = self.handlers[id(cls)] = self._new_handler(thing, cls)
        return handler

    def handle(self, cls: type, handler: Handler) -> None:
        """Have the objects of a class handled in a way of its own during this walk."""
        self._classes.append(cls)
        self.handlers[id(cls)] = handler

    def handle_treedefs(self) -> None:
        self.handle(tree_util.PyTreeDef, Handler(treedef_level, self._placeholder, False))

    def trouble(self, thing: Any, what: str, error: BaseException, *, is_leaf: bool) -> int:
        """The facts of an object that could not be described, with a note that says why."""
        self.notes.append(Note("error", f"{what}: {error_text(error)}"))
        cls = type(thing)
        return self.facts.code(Facts("error", class_name(cls), is_leaf, int(is_leaf), module=module_name(cls)))

    def node(self, node: Any, handler: Handler, level: Level, may_inline: bool) -> tuple[int, Level, Inlined | None]:
        """The code of a node's facts, and its level without what is not to be shown.

        The root is never inlined: it has no key, and the leaf in it has one.
        """
        cls = type(node)
        if handler.level is treedef_level:
            cls = level.aux[0]
            is_builtin = cls in BUILTIN_LEVELS
            kind = _BUILTIN_KINDS.get(cls, "dict" if is_builtin else "node")
            return self.facts.code(Facts(kind, class_name(cls), False)), level, None
        try:
            if handler.look is not None:
                return self._by_look(node, _look(handler.look, node), level, may_inline)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._complain(error)
        return self._by_kind(node, None, level), level, None

    def _by_kind(self, node: Any, look: Look | None, level: Level) -> int:
        """The code of the facts of a node of which a look says its kind at most. Nodes that look alike share them."""
        alike, values = self._alike(node, look, level)
        code = None if alike is None else self._codes.get(alike)
        if code is None:
            facts = self._node_facts(node, level)
            code = self.facts.code(facts if look is None else self.facts.with_look(facts, look))
            if alike is not None:
                self._codes[alike] = code
                self._kept.append(values)
        return code

    def _alike(self, node: Any, look: Look | None, level: Level) -> tuple[tuple | None, list[Any]]:
        """What nodes with the same facts have in common, and their static values. None: each has its own facts."""
        names, aux = self.facts.static.names(type(node), level, self.keys), level.aux
        may_drop = names is not None and type(aux) is tuple and len(aux) < len(names)
        if names is None or may_drop or aux is node or self._class_facts(node).kind != "node":
            return None, []
        kind = "" if look is None else look.kind
        if type(kind) is not str:
            return None, []
        values = stored_values(node, names)
        return (id(type(node)), id(names), kind, *sameness(values)), values  # all empty tuples have one id

    def _node_facts(self, node: Any, level: Level) -> Facts:
        facts = self._class_facts(node)
        if facts.kind == "closure":
            return facts._replace(text=describe_function(node.func), static=captured(node.func))
        if facts.kind == "namedtuple":
            return facts
        if level.aux is node and not level.children:
            return facts._replace(kind="static", text=static_text(node))
        names = self.facts.static.names(type(node), level, self.keys)
        return facts._replace(static=self.facts.static.of_node(node, level.aux, names))

    def _class_facts(self, node: Any) -> Facts:
        """What the class alone says of its nodes."""
        cls = type(node)
        facts = self._by_class.get(id(cls))
        if facts is None:
            self._classes.append(cls)
            is_named_tuple = has_base(cls, tuple) and hasattr(cls, "_fields")
            kind = "closure" if has_base(cls, tree_util.Partial) else "namedtuple" if is_named_tuple else "node"
            facts = self._by_class[id(cls)] = Facts(kind, class_name(cls), False, module=module_name(cls))
        return facts

    def declared_leaf(self, node: Any) -> int:
        """A node that the caller's `is_leaf` made a leaf."""
        cls = type(node)
        return self.facts.code(
            Facts("opaque", class_name(cls), True, 1, text=value_text(node), module=module_name(cls))
        )

    def _new_handler(self, thing: Any, cls: type) -> Handler:
        builtin = next((known for known in BUILTIN_LEVELS if cls is known), None)
        if builtin is not None:
            code = self.facts.code(Facts(_BUILTIN_KINDS.get(builtin, "dict"), class_name(cls), False))
            return Handler(BUILTIN_LEVELS[builtin], lambda _: code, has_identity=True, is_builtin=True)
        look = describer_of(cls)
        # what raises here raises again when the node is entered, where it becomes its row's error
        # jax 0.10 warns of a generator, and an error is to come: looking at one is no reason for a warning.
        is_node = cls is not types.GeneratorType
        data = guarded(lambda: one_level(thing)[1], lambda _: (cls, None)) if is_node else None
        if data is not None:
            return Handler(level_of(cls), self._placeholder, True, look)
        plain, has_identity = self.facts.describer(cls)
        describe = self._opaque if plain == self.facts.opaque else plain
        if look is None:
            return Handler(None, describe, has_identity)

        def describe_by_look(leaf: Any) -> int:
            code = guarded(lambda: self._leaf_by_look(leaf, look, plain), self._complain)
            return describe(leaf) if code is None else code

        return Handler(None, describe_by_look, True)

    def _placeholder(self, _: Any) -> int:
        return self.facts.code(Facts("placeholder", "*", True, 1))

    def _opaque(self, leaf: Any) -> int:
        self._accuse(leaf)
        return self.facts.opaque(leaf)

    def _accuse(self, leaf: Any) -> None:
        """A note if an opaque leaf hides arrays."""
        inside = arrays_inside(leaf)
        if inside:
            n, name = len(inside), class_name(type(leaf))
            text = f"holds {n} array{'s' * (n > 1)} that JAX cannot see: {name} is not registered as a pytree node"
            self.notes.append(Note("hides", text, details=inside))

    def _complain(self, error: BaseException) -> None:
        self.notes.append(Note("error", f"the describer of this class raised: {error_text(error)}"))

    def _leaf_by_look(self, leaf: Any, describe: Describer, plain: Callable[[Any], int]) -> int:
        look = _look(describe, leaf)
        facts = self.facts.with_look(self.facts.facts[plain(leaf)], look)
        if facts.kind == "opaque" and not look.transparent:
            self._accuse(leaf)
        return self.facts.code(facts)

    def _by_look(self, node: Any, look: Look, level: Level, may_inline: bool) -> tuple[int, Level, Inlined | None]:
        if look[1:] == ONLY_A_KIND:
            return self._by_kind(node, look, level), level, None
        is_complete = look.kind and look.static is not None
        facts = self._class_facts(node) if is_complete else self._node_facts(node, level)
        facts = self.facts.with_look(facts, look)
        if look.labels is not None or look.step is not None or look.hide:
            level = self._level_by_look(level, look)
        if look.inline and may_inline and len(level.children) == 1 and level.keys is not None:
            leaf = level.children[0]
            handler = self.handler(leaf)
            if handler.level is None:
                inner = self.facts.facts[handler.describe(leaf)]
                text = "  ".join(filter(None, (inner.text, facts.text)))
                facts = inner._replace(type=facts.type, module=facts.module, text=text, static=facts.static)
                key = self.keys.keys[level.keys[0]]
                return self.facts.code(facts), Level([], None), Inlined(leaf, key, handler.has_identity)
        return self.facts.code(facts), level, None

    def _level_by_look(self, level: Level, look: Look) -> Level:
        """The level without the children that are hidden, and with the names that a describer gives to the others."""
        keys = [] if level.keys is None else [self.keys.keys[code] for code in level.keys]
        if look.labels is not None:
            names = [visible(label) for label in look.labels]
            keys = [key._replace(label=name, segment=name) for key, name in zip(keys, names, strict=True)]
        if look.step is not None:
            steps = [look.step(key.keystr) for key in keys]
            keys = [key if step is None else key._replace(steps=(step,)) for key, step in zip(keys, steps, strict=True)]
        children = level.children
        if look.hide:
            pairs = zip(keys, children, strict=True)
            pairs = [(key, kid) for key, kid in pairs if key.segment not in look.hide or not self._is_empty(kid)]
            keys, children = [key for key, _ in pairs], [kid for _, kid in pairs]
        return level._replace(children=children, keys=[self.keys.code(key) for key in keys])

    def _is_empty(self, node: Any) -> bool:
        """Whether JAX sees a node without children."""
        handler = self.handler(node)
        level = handler.level and handler.level(node, self.keys)
        return level is not None and not level.children


def _look(describe: Describer, thing: Any) -> Look:
    look = describe(thing)
    if not isinstance(look, Look):
        raise TypeError(f"a describer returns a treeviz.Look, not {value_text(look)}")
    return look
