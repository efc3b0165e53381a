"""Python that makes a class a pytree node, or a static field a child: from what its objects hold."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection
from typing import Any

from treeviz.analysis.checks.finding import Changed
from treeviz.tree.level import one_level
from treeviz.tree.opaque import arrays_in, attributes, items
from treeviz.tree.safe_repr import class_attribute, class_name, guarded, has_base, module_name, mro, namespace

_MAX_OBJECTS = 500  # that are searched for arrays in one attribute
_ITEMS, _VIEWS = type({}.items()), (type({}.keys()), type({}.values()))
_TAKES_ANY = 0x04  # of the code of a function: it has *args


def registration(leaf: Any) -> str:
    """Python that registers the class of a leaf, so that the arrays in it are children."""
    cls = type(leaf)
    if has_base(cls, set, frozenset):
        return "{at} = list({at})  # a set has no order in which to flatten it"
    if name := stands_for(cls):
        return Changed(f"{name}({{x}})")
    if has_base(cls, types.MappingProxyType):
        return "{at} = dict({at})"
    before, name = _named(cls)
    stored = [(attribute, value) for attribute, value in attributes(leaf) if not attribute.startswith("__")]
    if any(_has_arrays(value) for _, value in items(leaf, _MAX_OBJECTS)[0]):
        of_container = _of_dict if has_base(cls, dict) else _of_sequence
        return before + of_container(leaf, name, [attribute for attribute, _ in stored])
    data = [attribute for attribute, value in stored if _has_arrays(value)]
    meta = [attribute for attribute, _ in stored if attribute not in data]
    if _takes_keywords(cls, [*data, *meta]):
        return f"{before}jax.tree_util.register_dataclass({name}, data_fields={data!r}, meta_fields={meta!r})"
    base = next(base for base in mro(cls) if type(namespace(base).get("__new__")) is types.BuiltinFunctionType)
    new = f"{name if base is cls else _builtin(base)}.__new__({name})"
    flat = f"[(jax.tree_util.GetAttrKey(n), getattr(x, n)) for n in {data!r}], {_tuple_of(meta)}"
    return before + _with_keys(name, new, [*data, *meta], "[*xs, *meta]", flat)


def stands_for(cls: type) -> str:
    """The container that has the contents of one of Python's iterators or views of dicts: "list"; "" of all else."""
    if has_base(cls, _ITEMS):
        return "dict"
    is_iterator = class_attribute(cls, "__next__") is not None and class_attribute(cls, "__iter__") is not None
    is_known = module_name(cls) in ("builtins", "itertools") and (is_iterator or has_base(cls, *_VIEWS))
    return "list" if is_known else ""


def _named(cls: type) -> tuple[str, str]:
    """Python that gives the class a name where it may have none, and the name."""
    name, module = class_name(cls), module_name(cls)
    if "<locals>" in type.__dict__["__qualname__"].__get__(cls):
        name = name.rpartition(".")[2]
        return f"{name} = type({{at}})\n", name
    is_there = module in ("__main__", "builtins", "")
    return ("" if is_there else f"from {module} import {name.partition('.')[0]}\n"), name


def _builtin(base: type) -> str:
    module = module_name(base)
    return class_name(base) if module == "builtins" else f"__import__({module!r}).{class_name(base)}"


def _of_dict(leaf: Any, name: str, meta: list[str]) -> str:
    cls = type(leaf)
    can_sort = guarded(lambda: sorted(dict.keys(leaf)) is not None, lambda _: False)
    keys = "sorted(x)" if can_sort and not has_base(cls, OrderedDict) else "x"
    children = f"[(jax.tree_util.DictKey(key), x[key]) for key in {keys}]"
    is_default = has_base(cls, defaultdict)
    if _can_be_called(cls, {*meta} - dict.keys(leaf)) and not is_default:
        functions = f"lambda x: ({children}, tuple({keys})),\n    lambda keys, values: {name}(zip(keys, values)),"
        return f"jax.tree_util.register_pytree_with_keys(\n    {name},\n    {functions}\n)"
    meta = ["default_factory"] * is_default + meta
    base = _builtin(next(base for base in (OrderedDict, defaultdict, dict) if has_base(cls, base)))
    flat = f"{children}, (tuple({keys}), {_tuple_of(meta).removeprefix('(')}"
    return _with_keys(name, f"{base}.__new__({name})", meta, "meta[1:]", flat, f"{base}.update(new, zip(meta[0], xs))")


def _of_sequence(leaf: Any, name: str, meta: list[str]) -> str:
    cls = type(leaf)
    if has_base(cls, deque):
        functions = f"lambda x: (tuple(x), x.maxlen), lambda n, xs: {name}(xs, n)"
    elif _can_be_called(cls, {*meta}) and not any(code.co_flags & _TAKES_ANY for code in _constructors(cls)):
        functions = f"lambda x: (tuple(x), None), lambda _, xs: {name}(xs)"
    else:
        is_tuple = has_base(cls, tuple)
        new = f"tuple.__new__({name}, xs)" if is_tuple else f"list.__new__({name})"
        flat = f"[(jax.tree_util.SequenceKey(i), each) for i, each in enumerate(x)], {_tuple_of(meta)}"
        return _with_keys(name, new, meta, "meta", flat, "" if is_tuple else "list.extend(new, xs)")
    return f"jax.tree_util.register_pytree_node(\n    {name}, {functions}\n)"


def _with_keys(name: str, new: str, attributes: list[str], values: str, flat: str, fill: str = "") -> str:
    """Python that registers a class whose objects are made without their constructor."""
    lines = [f"new = {new}", *([fill] if fill else [])]
    if attributes:
        lines += [f"for name, value in zip({attributes!r}, {values}):", "    object.__setattr__(new, name, value)"]
    body = "".join(f"    {line}\n" for line in [*lines, "return new"])
    register = f"jax.tree_util.register_pytree_with_keys(\n    {name},\n    lambda x: ({flat}),\n    unflatten,\n)"
    return f"def unflatten(meta, xs):\n{body}\n{register}"


def _constructors(cls: type) -> list[types.CodeType]:
    """The code of `__new__` and `__init__` that are written in Python."""
    found = []
    for name in ("__new__", "__init__"):
        method = class_attribute(cls, name)
        function = method.__func__ if type(method) is staticmethod else method
        found += [function.__code__] if type(function) is types.FunctionType else []
    return found


def _can_be_called(cls: type, others: Collection[str]) -> bool:
    """Whether a constructor takes the contents: that of the builtin class, or one of any arguments.

    Args:
      others: Attributes that this would lose.
    """
    return not others and all(code.co_flags & _TAKES_ANY for code in _constructors(cls))


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
