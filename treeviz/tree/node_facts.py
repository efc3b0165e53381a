"""Describe nodes. Nodes that are alike share one record of facts, which is made once."""

from __future__ import annotations

from typing import Any

import jax

from treeviz.tree.aux_data import Fields
from treeviz.tree.describers import Description
from treeviz.tree.facts import Facts, Note
from treeviz.tree.functions import captured, captured_values, describe_function
from treeviz.tree.keys import KeyTable
from treeviz.tree.leaves import FactTable
from treeviz.tree.level import Level
from treeviz.tree.object_text import static_text
from treeviz.tree.opaque import contents
from treeviz.tree.safe_repr import class_name, has_base, module_name
from treeviz.tree.static import sameness, static_note, stored_values


class NodeFacts:
    """The facts of the nodes of one walk that are not builtin containers."""

    def __init__(self, keys: KeyTable, facts: FactTable) -> None:
        self._keys, self._facts = keys, facts
        self._notes = facts.static.notes
        self._by_class: dict[int, Facts] = {}  # by the class's id
        self._codes: dict[tuple, tuple[int, list[Note]]] = {}  # of shared facts, and their notes
        self._kept: list[Any] = []  # so that no id is reused

    def code(self, node: Any, description: Description | None, level: Level) -> int:
        """The code of the facts of a node whose description gives at most a kind. Equal nodes share it."""
        alike, values = self._alike(node, description, level)
        known = None if alike is None else self._codes.get(alike)
        if known is not None:
            self._notes += known[1]
            return known[0]
        n_before = len(self._notes)
        facts = self.of_node(node, level)
        code = self._facts.code(facts if description is None else self._facts.with_description(facts, description))
        if alike is not None and not any(name.startswith("aux") for name, _ in facts.static):
            self._codes[alike] = code, self._notes[n_before:]
            self._kept.append(values)
        return code

    def _alike(self, node: Any, description: Description | None, level: Level) -> tuple[tuple | None, list[Any]]:
        """A key that nodes with equal facts share, and their static values. None: the facts are not shared."""
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
            self._note(static_note(captured_values(node.func), "a function"))
            return facts._replace(text=describe_function(node.func), static=captured(node.func))
        if facts.kind == "namedtuple" and level.aux is None and len(level.children) == tuple.__len__(node):
            return facts
        if level.aux is node and not level.children:
            self._note(static_note(contents(node), "static data"))
            return facts._replace(kind="static", text=static_text(node))
        return facts._replace(static=self._facts.static.of_node(node, level, self._fields(node, level)))

    def _fields(self, node: Any, level: Level) -> Fields | None:
        return self._facts.static.fields(type(node), level, self._keys)

    def _note(self, note: Note | None) -> None:
        if note is not None:
            self._notes.append(note)

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
