"""TensorFlow: tensors and variables as leaves. Only their metadata is read."""

from __future__ import annotations

import math
from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.describers import Description
from treeviz.tree.text import guarded


@describes_from("tensorflow", "Tensor", "Variable")
def tensor(leaf: Any) -> Description:
    shape = guarded(lambda: tuple(map(int, leaf.shape)), lambda _: None)  # not known yet inside a tf.function
    n_bytes = 0 if shape is None else guarded(lambda: math.prod(shape) * int(leaf.dtype.size), lambda _: 0)
    parts = [str(guarded(lambda: leaf.device, lambda _: "")).rpartition("/device:")[2].lower()]
    parts += ["trainable"] if guarded(lambda: leaf.trainable, lambda _: False) is True else []
    text = ", ".join(filter(None, parts))
    return Description("tensor", text=text, shape=shape, dtype=str(leaf.dtype.name), bytes=n_bytes)
