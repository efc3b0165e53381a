"""xarray: arrays with their dimensions and coordinates; data sets with their variables. JAX knows neither."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import array_facts, describes_from
from treeviz.tree.describers import Description
from treeviz.tree.keys import stored_attribute
from treeviz.tree.text import aval_text


@describes_from("xarray", "DataArray", "Variable")
def data_array(leaf: Any) -> Description:
    variable = stored_attribute(leaf, "_variable") if hasattr(leaf, "coords") else leaf
    facts: dict[str, Any] = {"shape": leaf.shape, "dtype": str(leaf.dtype), "bytes": leaf.nbytes}
    facts |= array_facts(stored_attribute(variable, "_data"))
    return Description("tensor", text=_coordinates(leaf), axes=list(map(str, leaf.dims)), **facts)


@describes_from("xarray", "Dataset")
def dataset(leaf: Any) -> Description:
    arrays = {str(name): variable for name, variable in leaf.variables.items() if name not in leaf.coords}
    parts = [f"{name} {aval_text(x.shape, str(x.dtype), tuple(map(str, x.dims)))}" for name, x in arrays.items()]
    return Description(text=" · ".join(filter(None, (", ".join(parts), _coordinates(leaf)))))


def _coordinates(leaf: Any) -> str:
    names = ", ".join(map(str, getattr(leaf, "coords", ())))
    return f"coordinates: {names}" if names else ""
