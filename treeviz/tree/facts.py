"""The data of rows: facts, shardings, notes, the kinds of rows, and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from treeviz.tree.runtime import computed_once

NO_JAX_DTYPE = "not a JAX dtype"
MASKED = "masked: not accepted by JAX"
INSERTION = "insertion"  # the column by which a page sorts dicts as they were written
SCALARS = "scalar"  # the column whose labels stand beside the type


class DeviceIds(tuple[int, ...]):
    """Ids of devices. Thousands of rows may share a tuple of thousands of ids, so its hash is cached."""

    def __hash__(self) -> int:
        if "hash" not in self.__dict__:
            self.__dict__["hash"] = super().__hash__()
        return self.__dict__["hash"]


class Sharding(NamedTuple):
    """The devices that an array is on."""

    text: str  # "P('data', None)", "cpu:0"
    n_devices: int  # for an abstract mesh, the devices that it needs
    shard_shape: tuple[int, ...]  # () if the array cannot be split evenly
    replicated: bool  # several devices, each with the whole array
    committed: bool | None  # None: does not apply (an abstract array)
    addressable: bool  # False: another process has a part
    devices: str = ""  # "cpu:0–7 (data=8)", in the order of the mesh
    memory: str = ""  # "pinned_host"; "": the default memory of the devices
    platform: str = ""  # "cpu"; "": an abstract mesh
    device_ids: tuple[int, ...] = ()  # in the order of the mesh; none in an abstract one


class Facts(NamedTuple):
    """The facts of a node or leaf. Equal rows share one record.

    Every text is printable, bounded, and free of control characters.
    """

    kind: str  # one of `treeviz.tree.facts.KINDS`
    type: str  # the name of the class: "dict", "Linear", "jax.Array"
    is_leaf: bool  # as JAX sees it
    leaves: int = 0  # added to the count
    elements: int = 0  # array elements, added to the count
    bytes: int = 0
    shape: tuple[int, ...] | None = None
    dtype: str = ""  # "float32", "key<fry>"
    weak: bool = False  # weakly typed
    module: str = ""  # of the class
    text: str = ""  # a scalar's value, a function's name and line, a box's axis names
    static: tuple[tuple[str, str], ...] = ()  # names and values of static fields
    sharding: Sharding | None = None
    aval: str = ""  # a tracer's type as JAX writes it, if that adds something: "float32[8@x,4]{V:y}"
    inside: tuple[tuple[str, str], ...] = ()  # names and values in an opaque leaf, which JAX does not see
    is_as_all: bool = False  # all arrays of the tree have this kind, which the headline shows
    axes: tuple[str, ...] = ()  # the name of each axis of `shape`, "" if it has none; empty if no axis has one
    differs: tuple[Any, ...] = ()  # how it differs from other trees; not empty if only what is below does


def is_refused(facts: Facts) -> bool:
    """Whether it is a NumPy array or scalar that no JAX function accepts."""
    if facts.kind == "scalar":
        return bool(facts.dtype) and facts.elements == 0
    return facts.kind in ("numpy", "stored") and facts.text.startswith((NO_JAX_DTYPE, MASKED))


class Note(NamedTuple):
    """A message about one row, shown as a badge."""

    kind: str  # one of `treeviz.tree.facts.NOTES`: "shared", "cycle", "error", "more", "hidden", "info"
    text: str  # a sentence for the user
    row: int = -1  # a related row, e.g. the first one of a shared leaf
    details: tuple[tuple[str, str], ...] = ()  # lines below the text: ("._w", "float32[3]")
    severity: str = ""  # "error", "warning" of a finding; the kind of a difference between trees
    sign: str = ""  # shown by a page's badge in place of the text
    brief: str = ""  # shown in a line of text that has no room for the text


# The kinds of rows and of notes, by name


class Kind(NamedTuple):
    """The properties of a kind of row."""

    help: str
    # "part": of a leaf, invisible to JAX; "trouble": a placeholder for rows that could not be walked
    group: Literal["node", "leaf", "part", "trouble"]
    is_container: bool = False  # a node that is labelled "empty" when it has no children
    may_box: bool = False  # a node that may wrap the only leaf below it
    has_values: bool = False  # an array whose values can be drawn
    no_values: str = ""  # why statistics skip a leaf that holds no array; "" if they do not, or if it is obvious
    is_abstract: bool = False  # it has no values, and at most a shape
    is_mutable: bool = False  # the object may change in place, so sharing is noted whatever its size
    has_identity: bool = False  # whether two leaves are one object is noted
    is_self_evident: bool = False  # the explorer has no details beyond the row
    has_owner: bool = True  # the explorer offers to search the object's referrers
    implied_types: tuple[str, ...] | None = ()  # the classes that are omitted after "float32[3] KIND"; None: all
    is_implied: bool = False  # "float32[3]" alone implies the kind


KINDS = {
    # Nodes
    "dict": Kind("a mapping: its keys are sorted as JAX sorts them", "node", is_container=True, is_self_evident=True),
    "list": Kind("a list", "node", is_container=True, is_self_evident=True),
    "tuple": Kind("a tuple", "node", is_container=True, is_self_evident=True),
    "namedtuple": Kind("a named tuple: its fields are children", "node", is_container=True),
    "none": Kind("None: absence, not a leaf", "node", is_self_evident=True, has_owner=False),
    "node": Kind("a registered pytree node", "node", is_container=True, may_box=True),
    "module": Kind("a model: a node of a neural-network library", "node", is_container=True, may_box=True),
    "static": Kind("a registered static node: no leaves", "node"),
    "closure": Kind("a function as a pytree (Partial): what it captured are its children", "node"),
    # Leaves
    "array": Kind(
        "a jax.Array", "leaf", has_values=True, has_identity=True, implied_types=("jax.Array",), is_implied=True
    ),
    "numpy": Kind("a NumPy array", "leaf", has_values=True, has_identity=True, implied_types=("np.ndarray", "ndarray")),
    "stored": Kind(
        "an array in a file, read on demand",
        "leaf",
        has_identity=True,
        has_owner=False,
        implied_types=("Stored",),
        is_implied=True,
    ),
    "scalar": Kind(
        "a Python or NumPy scalar",
        "leaf",
        is_self_evident=True,
        has_owner=False,
        implied_types=None,
        is_implied=True,
    ),
    "string": Kind("text or bytes: not a JAX type", "leaf", is_self_evident=True, has_owner=False),
    "shape only": Kind(
        "a shape and a dtype without values",
        "leaf",
        no_values="no values: only its shape is known",
        is_abstract=True,
        implied_types=("ShapeDtypeStruct", "ShapedArray"),
    ),
    "tracer": Kind(
        "a traced value",
        "leaf",
        no_values="traced: it has no values yet",
        is_abstract=True,
        implied_types=None,
    ),
    "key": Kind(
        "a typed PRNG key",
        "leaf",
        no_values="PRNG key (no statistics)",
        has_identity=True,
        implied_types=None,
        is_implied=True,
    ),
    "float0": Kind(
        "the tangent of an integer: no values",
        "leaf",
        no_values="float0: it has no values",
        implied_types=None,
        is_implied=True,
    ),
    "deleted": Kind(
        "an array whose buffer was deleted or donated",
        "leaf",
        no_values="deleted or donated: it has no values",
        implied_types=("jax.Array",),
    ),
    "ref": Kind(
        "a mutable reference",
        "leaf",
        no_values="a mutable reference: it is not read",
        is_mutable=True,
        has_identity=True,
        implied_types=None,
    ),
    "hijax": Kind(
        "a value of a type registered with JAX (hijax): jit accepts it",
        "leaf",
        no_values="a value of a hijax type: it is not read",
        has_identity=True,
    ),
    "function": Kind("a function: not a JAX type", "leaf"),
    "tensor": Kind("an array of another library", "leaf", no_values="an array of another library: it is not read"),
    "variable": Kind(
        "a mutable box of a neural-network library",
        "leaf",
        may_box=True,
        has_values=True,
        no_values="a variable whose value is no array: it is not read",
    ),
    "opaque": Kind("an object that is opaque to JAX", "leaf", is_mutable=True),
    "placeholder": Kind("a leaf of a bare PyTreeDef", "leaf", is_abstract=True, is_self_evident=True, has_owner=False),
    "layer": Kind("a layer of a stacked leaf", "part", is_self_evident=True, has_owner=False, implied_types=None),
    # Placeholders for what could not be walked
    "error": Kind("flattening this node raised", "trouble", is_self_evident=True),
    "cycle": Kind("this node contains itself", "trouble", is_self_evident=True),
    "repeat": Kind("a subtree that was shown before: counted, not repeated", "trouble", is_self_evident=True),
    "same": Kind("the same in both trees: counted, not shown", "trouble", is_self_evident=True, has_owner=False),
    "more": Kind("children that the budget left out", "trouble", is_self_evident=True, has_owner=False),
}

NODE_KINDS = frozenset(name for name, kind in KINDS.items() if kind.group == "node")
LEAF_KINDS = frozenset(name for name, kind in KINDS.items() if kind.group == "leaf")

NOTES = {
    "shared": "the same object occurs in more than one place",
    "cycle": "contains itself",
    "error": "something raised",
    "more": "not all of it is here",
    "hidden": "holds arrays that JAX cannot see",
    "partial": "part of it is in another process",
    "nonfinite": "has values that are NaN or infinite",
    "differs": "differs between the trees that are compared",
    "warning": "may be wrong",
    "info": "worth knowing",
}

# Columns: one value for every row of a `TreeTable`, and how to show and roll it up

Format = Literal["label", "count", "bytes", "number", "histogram"]
INHERITED = " ← "  # in a label: the value comes from a row above; views draw a bracket along the rows that share it
Rollup = Literal["sum", "max", "min", "any", "norm", "given", "none"]


@dataclass(frozen=True)
class Column:
    """One value for every row.

    A column is stored plain (`levels[row]`) or dictionary-coded (`levels[codes[row]]`). Columns derived
    from the same facts share one `codes` array, so that it is packed and sent once.

        depths = np.array([row.depth for row in tv.walk(params)])
        depth = tv.Column("depth", "depth", depths, format="count", rollup="max", help="Levels of the subtree")
        tv.render(params, columns=["bytes", depth])

    Attributes:
      name: The identifier in queries, in `columns=` and in `TreeTable.columns`: "bytes", "nan".
      title: The heading: "bytes", "NaN".
      levels: The values: numbers (NaN where a row has none), strings for the format "label",
        or float[n, bins] for "histogram".
      codes: int[n_rows] into `levels`, or None when `levels` has one entry per row.
      format: "label" text; "count" whole numbers; "bytes"; "number" floats; "histogram" a small bar chart.
      rollup: How a node's value is computed from the values in its subtree. "given": `levels` already holds it;
        "none": a node keeps its own value.
      help: One sentence for a tooltip: the definition and the unit.
      bad: bool[n_rows]: rows with a NaN or infinite value, NaN in `levels`; any other NaN is a missing value.
      first_bin: The label of a histogram's first bin on its axis; the other bins count up from it.
      spans: The least and the greatest value, [n_rows] each, if a row of a text or a picture stands for several.
    """

    name: str
    title: str
    levels: np.ndarray | Sequence[str]
    codes: np.ndarray | None = None
    format: Format = "label"
    rollup: Rollup = "none"
    help: str = ""
    bad: np.ndarray | None = None
    first_bin: int = 0
    spans: tuple[np.ndarray, np.ndarray] | None = None

    def __getitem__(self, row: int):
        """The row's own value, not rolled up."""
        return self.levels[row if self.codes is None else self.codes[row]]

    @computed_once
    def values(self) -> np.ndarray:
        """[n_rows] (or [n_rows, bins]): every row's own value, not rolled up."""
        levels = np.asarray(self.levels, dtype=object if self.format == "label" else None)
        return levels if self.codes is None else levels[self.codes]
