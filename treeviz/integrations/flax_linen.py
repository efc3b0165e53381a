"""Flax Linen: a module is a leaf, a recipe without arrays of its own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.keys import MISSING, stored_attribute
from treeviz.tree.looks import Look
from treeviz.tree.opaque import arrays_inside

_NO_CONFIGURATION = ("parent", "name")


@describes_from("flax.linen", "Module")
def linen_module(leaf: Any) -> Look:
    configuration = {
        field.name: stored_attribute(leaf, field.name)
        for field in fields(leaf)
        if field.init and field.name not in _NO_CONFIGURATION
    }
    is_bound = stored_attribute(leaf, "scope") not in (None, MISSING)
    return Look(
        text="a Linen module, bound to variables" if is_bound else "a Linen module: its arrays are what init() returns",
        static=[(name, value) for name, value in configuration.items() if value is not None],
        # The variables of a bound module are seen elsewhere; an array in a field is seen nowhere.
        transparent=not arrays_inside(configuration),
    )
