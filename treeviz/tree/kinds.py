"""The kinds of rows and of notes, by name.

To add a kind of leaf, give it a record here, return its name in `leaves.py`, and give it a glyph in
`views/html/assets/tree/cells.js`; a colour in `tree.css` is optional.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Kind(NamedTuple):
    """The properties of a kind of row.

    Attributes:
      help: What it is.
      group: "node"; "leaf"; "part": of a leaf, which JAX does not see; "trouble": a placeholder for what could not be
        walked.
      is_container: A node that is labelled "empty" when it has no children.
      may_box: A node that may wrap the only leaf below it.
      has_values: The leaf is an array whose values can be drawn.
      no_values: Why statistics skip a leaf that holds no array; "": they do not, or the reason is obvious.
      is_abstract: It has at most a shape, and no values.
      is_mutable: The object may change in place, so sharing is noted whatever its size.
      has_identity: Whether two leaves are one object is noted.
      is_self_evident: The explorer has no details beyond the row.
      has_owner: The explorer offers to search the object's referrers.
      implied_types: The classes that are omitted after "float32[3] KIND"; None: all of them.
      is_implied: "float32[3]" alone implies the kind.
    """

    help: str
    group: Literal["node", "leaf", "part", "trouble"]
    is_container: bool = False
    may_box: bool = False
    has_values: bool = False
    no_values: str = ""
    is_abstract: bool = False
    is_mutable: bool = False
    has_identity: bool = False
    is_self_evident: bool = False
    has_owner: bool = True
    implied_types: tuple[str, ...] | None = ()
    is_implied: bool = False


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
        "an array in a file, which is read when it is asked for",
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
        no_values="shape only: no values",
        is_abstract=True,
        implied_types=("ShapeDtypeStruct", "ShapedArray"),
    ),
    "tracer": Kind(
        "a value that is being traced",
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
        "a value of a type that was registered with JAX (hijax): jit takes it",
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
    "opaque": Kind("an object that JAX cannot look into", "leaf", is_mutable=True),
    "placeholder": Kind("a leaf of a bare PyTreeDef", "leaf", is_abstract=True, is_self_evident=True, has_owner=False),
    "layer": Kind(
        "a layer of a stack, which is one leaf",
        "part",
        is_self_evident=True,
        has_owner=False,
        implied_types=None,
    ),
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
    "shared": "the same object stands in more than one place",
    "cycle": "contains itself",
    "error": "something raised",
    "more": "not all of it is here",
    "hidden": "holds arrays that JAX cannot see",
    "partial": "a part of it lives in another process",
    "nonfinite": "has values that are NaN or infinite",
    "differs": "differs between the trees that are compared",
    "warning": "may be wrong",
    "info": "worth knowing",
}
