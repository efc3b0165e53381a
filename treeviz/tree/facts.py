"""The facts, the sharding and the notes of a row."""

from __future__ import annotations

from typing import NamedTuple

NO_JAX_DTYPE = "not a JAX dtype"
MASKED = "masked, which JAX does not take"


class DeviceIds(tuple[int, ...]):
    """Ids of devices. Thousands of rows may share one tuple of thousands of ids, so it is hashed once."""

    def __hash__(self) -> int:
        if "hash" not in self.__dict__:
            self.__dict__["hash"] = super().__hash__()
        return self.__dict__["hash"]


class Sharding(NamedTuple):
    """On which devices an array lies."""

    text: str  # "P('data', None)", "cpu:0"
    n_devices: int  # of an abstract mesh, those that it needs
    shard_shape: tuple[int, ...]  # () also if the array cannot be split evenly
    replicated: bool  # several devices, each with the whole array
    committed: bool | None  # None: does not apply (an abstract array)
    addressable: bool  # False: another process has a part
    devices: str = ""  # "cpu:0–7 (data=8)", in the order of the mesh
    memory: str = ""  # "pinned_host"; "": the default memory of the devices
    platform: str = ""  # "cpu"; "": an abstract mesh
    device_ids: DeviceIds = DeviceIds()  # in the order of the mesh; none in an abstract one


class Facts(NamedTuple):
    """The facts of a node or leaf. Equal rows share one record.

    Every text is printable, bounded, and free of control characters.
    """

    kind: str  # one of `treeviz.tree.kinds.KINDS`
    type: str  # the name of the class: "dict", "Linear", "jax.Array"
    is_leaf: bool  # as JAX sees it
    leaves: int = 0  # that the row adds to the count
    elements: int = 0  # array elements that it adds
    bytes: int = 0
    shape: tuple[int, ...] | None = None
    dtype: str = ""  # "float32", "key<fry>"
    weak: bool = False  # weakly typed
    module: str = ""  # of the class
    text: str = ""  # a scalar's value, a function's name and line, a box's axis names
    static: tuple[tuple[str, str], ...] = ()  # names and values of static fields
    sharding: Sharding | None = None
    aval: str = ""  # a tracer's type as JAX writes it, if that says more: "float32[8@x,4]{V:y}"
    inside: tuple[tuple[str, str], ...] = ()  # names and values in an opaque leaf, which JAX does not see
    is_as_all: bool = False  # all arrays of the tree are of this kind, which the headline says


def is_refused(facts: Facts) -> bool:
    """Whether it is an array or a number of NumPy that no function of JAX takes."""
    if facts.kind == "scalar":
        return bool(facts.dtype) and facts.elements == 0
    return facts.kind in ("numpy", "stored") and facts.text.startswith((NO_JAX_DTYPE, MASKED))


class Note(NamedTuple):
    """A message about one row, shown as a badge."""

    kind: str  # one of `treeviz.tree.kinds.NOTES`: "shared", "cycle", "error", "more", "hidden", "info"
    text: str  # a sentence for the user
    row: int = -1  # a related row, e.g. the first one of a shared leaf
    details: tuple[tuple[str, str], ...] = ()  # lines below the text: ("._w", "float32[3]")
    severity: str = ""  # "error", "warning" of a finding; the kind of a difference between trees
    sign: str = ""  # what the badge of a page shows in place of the text
    brief: str = ""  # what a line of text shows in place of it where it has no room
