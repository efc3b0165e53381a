"""Python that makes a class a pytree node, or a static field a child: from what its objects hold."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Collection
from typing import Any

from treeviz.tree.level import one_level
from treeviz.tree.opaque import arrays_in, attributes, items
from treeviz.tree.safe_repr import class_name, guarded, has_base, mro, namespace

_MAX_OBJECTS = 500  # that are searched for arrays in one attribute


def registration(leaf: Any) -> str:
    """Python that registers the class of a leaf, so that the arrays in it are children."""
    cls = type(leaf)
    name = class_name(cls)
    if has_base(cls, dict):
        return (
            f"jax.tree_util.register_pytree_with_keys(\n    {name},\n"
            "    lambda d: ([(jax.tree_util.DictKey(key), d[key]) for key in sorted(d)], tuple(sorted(d))),\n"
            f"    lambda keys, values: {name}(zip(keys, values)),\n)"
        )
    if has_base(cls, deque):
        name = "collections.deque" if cls is deque else name
        functions = f"lambda d: (tuple(d), d.maxlen), lambda n, xs: {name}(xs, n)"
        return f"jax.tree_util.register_pytree_node(\n    {name}, {functions}\n)"
    if has_base(cls, set, frozenset):
        return "{at} = list({at})  # a set has no order in which to flatten it"
    if has_base(cls, list, tuple):
        return f"jax.tree_util.register_pytree_node({name}, lambda x: (tuple(x), None), lambda _, xs: {name}(xs))"
    if has_base(cls, types.MappingProxyType):
        return "{at} = dict({at})"
    found = [(attribute, value) for attribute, value in attributes(leaf) if not attribute.startswith("__")]
    data = [attribute for attribute, value in found if _has_arrays(value)]
    meta = [attribute for attribute, _ in found if attribute not in data]
    if _takes_keywords(cls, [*data, *meta]):
        return f"jax.tree_util.register_dataclass({name}, data_fields={data!r}, meta_fields={meta!r})"
    return (
        f"def unflatten(meta, data):\n    new = object.__new__({name})\n"
        f"    for name, value in zip({[*data, *meta]!r}, [*data, *meta]):\n"
        "        object.__setattr__(new, name, value)\n    return new\n\n"
        f"jax.tree_util.register_pytree_with_keys(\n    {name},\n"
        f"    lambda x: ([(jax.tree_util.GetAttrKey(n), getattr(x, n)) for n in {data!r}], {_tuple_of(meta)}),\n"
        "    unflatten,\n)"
    )


def _has_arrays(value: Any) -> bool:
    return arrays_in([("", value)], _MAX_OBJECTS).n_arrays > 0


def _tuple_of(names: Collection[str]) -> str:
    return f"({''.join(f'x.{name}, ' for name in names).rstrip()})"


def _takes_keywords(cls: type, names: Collection[str]) -> bool:
    """Whether the constructor takes every attribute by its name, and needs nothing else."""
    init = next((namespace(base)["__init__"] for base in mro(cls) if "__init__" in namespace(base)), None)
    code = getattr(init, "__code__", None) if type(init) is types.FunctionType else None
    if type(code) is not types.CodeType or not names:
        return False
    n = code.co_argcount + code.co_kwonlyargcount
    return code.co_posonlyargcount == 0 and set(code.co_varnames[1:n]) == set(names)


def as_child(node: Any) -> str:
    """Python that makes the static fields of a node that hold arrays children."""
    cls = type(node)
    name = class_name(cls)
    names = [each for each, value in aux_attributes(node) if each.isidentifier() and _has_arrays(value)]
    if not names:
        return ""
    if any("__dataclass_fields__" in namespace(base) for base in mro(cls)):
        return "\n".join(
            f"{each}: jax.Array  # in {name}, without static=True, and in no meta_fields" for each in names
        )
    fields = "".join(f", self.{each}" for each in names)
    return f"return (*children{fields}), aux  # in tree_flatten of {name}, and without them in aux"


def aux_attributes(node: Any) -> list[tuple[str, Any]]:
    """(name, value) of the stored attributes that are part of the auxiliary data. Flattens the node by one level."""
    aux = guarded(lambda: (one_level(node)[1] or (None, None))[1], lambda _: None)
    parts = {id(aux), *_ids(aux), *(each for part in (aux if type(aux) is tuple else ()) for each in _ids(part))}
    return [(name, value) for name, value in attributes(node) if id(value) in parts]


def _ids(container: Any) -> list[int]:
    found = () if type(container) in (str, bytes) else items(container, _MAX_OBJECTS)[0]
    return [id(each) for _, each in found]
