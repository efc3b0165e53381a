"""Values of types that users register through `jax.experimental.hijax`, which JAX accepts like arrays."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from treeviz.steps.tracing.jax_private import TO_KNOW_HIJAX_TYPES, hijax_type_function
from treeviz.tree.describers import Describer, Description, finds_describers
from treeviz.tree.text import array_text, guarded, visible

TO_DESCRIBE = TO_KNOW_HIJAX_TYPES


def describer_of_hijax(cls: type) -> Describer | None:
    """The describer of a class whose objects have a hijax type; None for other classes."""
    type_of = guarded(partial(hijax_type_function, cls), lambda _: None)
    if type_of is None:
        return None

    def describe(value: Any) -> Description:
        aval = type_of(value)
        shape, dtype = guarded(lambda: (tuple(aval.shape), str(aval.dtype)), lambda _: (None, ""))
        inner_avals = guarded(lambda: list(aval.lo_ty()), lambda _: [])  # the types of the arrays inside
        if shape is not None:
            n_bytes = guarded(lambda: sum(math.prod(x.shape) * x.dtype.itemsize for x in inner_avals), lambda _: 0)
            return Description("hijax", text=_text(aval), shape=shape, dtype=dtype, bytes=n_bytes, transparent=True)
        text = " · ".join(filter(None, (_text(aval), ", ".join(filter(None, map(array_text, inner_avals))))))
        return Description("hijax", text=text, transparent=True)

    return describe


def _text(aval: Any) -> str:
    return visible(guarded(lambda: str(aval.str_short()), lambda _: "") or guarded(lambda: str(aval), lambda _: ""), 60)


finds_describers(describer_of_hijax)
