"""TensorFlow: tensors and variables as leaves. Nothing but their metadata is read."""

from __future__ import annotations

import math
from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.looks import Look
from treeviz.tree.quote import guarded


@describes_from("tensorflow", "Tensor", "Variable")
def tensor(leaf: Any) -> Look:
    shape = guarded(lambda: tuple(map(int, leaf.shape)), lambda _: None)  # not known yet inside a tf.function
    n_bytes = 0 if shape is None else guarded(lambda: math.prod(shape) * int(leaf.dtype.size), lambda _: 0)
    words = [str(guarded(lambda: leaf.device, lambda _: "")).rpartition("/device:")[2].lower()]
    words += ["trainable"] if guarded(lambda: leaf.trainable, lambda _: False) is True else []
    return Look("tensor", text=", ".join(filter(None, words)), shape=shape, dtype=str(leaf.dtype.name), bytes=n_bytes)
