"""The vocabulary: kinds of rows and kinds of notes, the same words in tables, queries and views."""

from __future__ import annotations

# Nodes: JAX looks inside.
NODE_KINDS = {
    "dict": "a mapping: its keys are sorted as JAX sorts them",
    "list": "a list",
    "tuple": "a tuple",
    "namedtuple": "a named tuple: its fields are children",
    "none": "None: absence, not a leaf",
    "node": "a registered pytree node",
    "module": "a model: a node of a neural-network library",
    "static": "a registered static node: no leaves",
    "closure": "a function as a pytree (Partial): what it captured are its children",
}

# Leaves: one each, as JAX counts.
LEAF_KINDS = {
    "array": "a jax.Array",
    "numpy": "a NumPy array",
    "scalar": "a Python or NumPy scalar",
    "string": "text or bytes: not a JAX type",
    "abstract": "a shape and a dtype without values",
    "tracer": "a value that is being traced",
    "key": "a typed PRNG key",
    "float0": "the tangent of an integer: no values",
    "deleted": "an array whose buffer was deleted or donated",
    "ref": "a mutable reference",
    "function": "a function: not a JAX type",
    "tensor": "an array of another library",
    "variable": "a mutable box of a neural-network library",
    "opaque": "an object that JAX cannot look into",
    "placeholder": "a leaf of a bare PyTreeDef",
}

# Rows that stand for what could not be walked.
TROUBLE_KINDS = {
    "error": "flattening this node raised",
    "cycle": "this node contains itself",
    "repeat": "a subtree that was shown before: counted, not repeated",
    "more": "children that the budget left out",
}

KINDS = NODE_KINDS | LEAF_KINDS | TROUBLE_KINDS

NOTES = {
    "shared": "the same object stands in more than one place",
    "cycle": "contains itself",
    "error": "something raised",
    "more": "not all of it is here",
    "hides": "holds arrays that JAX cannot see",
    "partial": "a part of it lives in another process",
    "info": "worth knowing",
}
