"""The arrays of a file that has no names, in the tree that it was made from."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from treeviz.tree.files.entries import LoadError
from treeviz.tree.stored import Stored

_NUMBERS = (bool, int, float, complex, np.generic)


def in_tree_like(like: Any, arrays: Any, file: str) -> Any:
    """The tree `like` with the arrays of a file in place of its own, in the order of its leaves.

    Args:
      file: Its name.

    Raises:
      LoadError: The file has others than `like`; the message names the first.
    """
    if type(arrays) is not list or not all(type(each) is Stored for each in arrays):
        raise LoadError(f"{file} has names: like= is for files without, .eqx")
    leaves, treedef = jax.tree_util.tree_flatten_with_path(like)
    rest, found = iter(arrays), []
    for path, leaf in leaves:
        has_shape = isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)
        if not has_shape and not isinstance(leaf, _NUMBERS):
            found.append(leaf)
            continue
        where, stored = jax.tree_util.keystr(path), next(rest, None)
        shape = tuple(leaf.shape) if has_shape else ()
        if stored is None or stored.shape != shape:
            has = "nothing more" if stored is None else f"the shape {stored.shape}"
            raise LoadError(f"{file} has {has} where like= has the shape {shape}: at {where}")
        found.append(_of_dtype(stored, leaf.dtype if has_shape else None, where))
    n_more = sum(1 for _ in rest)
    if n_more:
        raise LoadError(f"{file} has {n_more:,} {'array' if n_more == 1 else 'arrays'} more than like=")
    return treedef.unflatten(found)


def _of_dtype(stored: Stored, dtype: Any, name: str) -> Stored:
    """The array by its name in the tree. NumPy forgets the name of bfloat16, which `like` knows."""
    is_void = stored.dtype.kind == "V" and dtype is not None and stored.dtype.itemsize == dtype.itemsize
    dtype = np.dtype(dtype) if is_void else stored.dtype
    return Stored(stored.shape, dtype, stored.chunks_of, name, stored.nbytes, order=stored.order)
