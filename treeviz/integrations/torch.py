"""PyTorch: tensors as leaves. Only their metadata is read."""

from __future__ import annotations

import math
from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.describers import Description
from treeviz.tree.text import guarded

# The tensors that a sparse tensor consists of. For COO the private ones, since the public ones require coalescing.
_PARTS = {
    "sparse_coo": ("_indices", "_values"),
    **dict.fromkeys(("sparse_csr", "sparse_bsr"), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys(("sparse_csc", "sparse_bsc"), ("ccol_indices", "row_indices", "values")),
}


@describes_from("torch", "Tensor")
def tensor(leaf: Any) -> Description:
    shape = tuple(map(int, leaf.shape))
    layout = guarded(lambda: str(leaf.layout).removeprefix("torch."), lambda _: "strided")
    parts = [str(leaf.device), *[layout] * (layout in _PARTS), *["requires_grad"] * bool(leaf.requires_grad)]
    return Description(
        "tensor",
        text=", ".join(parts),
        shape=shape,
        dtype=str(leaf.dtype).removeprefix("torch."),
        bytes=guarded(lambda: _stored_bytes(leaf, layout, shape), lambda _: 0),
    )


def _stored_bytes(leaf: Any, layout: str, shape: tuple[int, ...]) -> int:
    """The bytes of the tensor in memory: 0 on "meta", fewer if it is sparse or expanded."""
    if layout in _PARTS:
        parts = [getattr(leaf, name)() for name in _PARTS[layout]]
        return sum(math.prod(part.shape) * part.element_size() for part in parts)
    n_bytes = math.prod(shape) * leaf.element_size()
    storage = guarded(lambda: leaf.untyped_storage(), lambda _: leaf)  # since PyTorch 2.0
    if str(storage.device) == "meta":
        return 0
    return n_bytes if storage is leaf else min(n_bytes, storage.nbytes())
