"""PyTorch: tensors as leaves. Nothing but their metadata is read."""

from __future__ import annotations

import math
from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.looks import Look
from treeviz.tree.quote import guarded


@describes_from("torch", "Tensor")
def tensor(leaf: Any) -> Look:
    shape = tuple(map(int, leaf.shape))
    words = [str(leaf.device), *(["requires_grad"] if leaf.requires_grad else [])]
    return Look(
        "tensor",
        text=", ".join(words),
        shape=shape,
        dtype=str(leaf.dtype).removeprefix("torch."),
        bytes=guarded(lambda: math.prod(shape) * leaf.element_size(), lambda _: 0),
    )
