"""Rules of `treeviz.check`, their findings, and the code that fixes what they find."""

from __future__ import annotations

import inspect
import re
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from treeviz.tree.facts import Facts, Note
from treeviz.tree.level import one_level
from treeviz.tree.opaque import arrays_in, attributes, items
from treeviz.tree.runtime import computed_once
from treeviz.tree.table import TreeTable
from treeviz.tree.text import class_attribute, class_name, guarded, has_base, is_any, module_name, mro, namespace

# Findings

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("error", "warning", "info")
_PLACE = re.compile(r"\{(at|path|tree)\}")


class Changed(str):
    """An expression of {x}, for one leaf or for each leaf of a node."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TreeFinding:
    """A problem, or possible problem, in a tree. It holds no array.

        (finding,) = treeviz.check({"f": jnp.sin}, for_="jit")
        print(finding.code, finding.level, finding.path)  # T131 error ['f']
        print(finding.fix)

    Attributes:
      code: The code of the rule, as in `treeviz.check(ignore=["T131"])`.
      level: "error": JAX raises, or silently gives wrong results; "warning": it may, or is slower; "info".
      row: The row of the table.
      sentence: The problem.
      about: What the rule checks, why it matters, and when to ignore it.
    """

    code: str
    level: Level
    row: int
    sentence: str
    about: str = field(repr=False)
    _fix: str = field(repr=False)
    _table: TreeTable = field(repr=False, compare=False)

    @property
    def path(self) -> str:
        """The key path as `jax.tree_util.keystr` writes it, but right for named tuples (jax#39297). "" is the root."""
        return self._table[self.row].keystr

    @property
    def fix(self) -> str:
        """Python that fixes it, for a tree in a variable with the table's name; "" if there is none."""
        row, code = self._table[self.row], self._fix
        if isinstance(code, Changed):
            parent = row.parent
            is_builtin = parent is not None and parent.kind in ("dict", "list") and not parent.facts.module
            if parent is None or (is_builtin and all(type(step) is str for step in row.table.key(row.number).steps)):
                at = "{tree}" if parent is None else "{at}"
                code = f"{at} = {code.replace('{x}', at)}"
            else:  # in a node that may have no assignment
                matches = " == {path}" if row.is_leaf else ".startswith({path})"
                code = (
                    "{tree} = jax.tree_util.tree_map_with_path(\n    lambda path, x: "
                    f"{code.replace('{x}', 'x')} if jax.tree_util.keystr(path){matches} else x, {{tree}}\n)"
                )
        texts = {"at": lambda: row.expression, "path": lambda: repr(row.keystr), "tree": lambda: row.table.name}
        return _PLACE.sub(lambda match: texts[match[1]](), code)

    def __str__(self) -> str:
        return f"{self.code} {self.level} at {self.path or 'the root'}: {self.sentence}"


Use = Literal["any", "jit", "grad", "state"]
USES: tuple[Use, ...] = get_args(Use)
MIB = 2**20


@dataclass(frozen=True)
class Checked:
    """The tree to check."""

    table: TreeTable
    nodes: list[Any]  # the node or leaf of each row
    use: Use = "any"  # an argument of `jit` or `grad`, or the state of a training loop
    cache: dict[Any, Any] = field(default_factory=dict)  # results that rules reuse

    @computed_once
    def facts(self) -> Callable[[int], Facts]:
        """The facts of a row."""
        codes, facts = self.table.fact_codes.tolist(), self.table.facts  # elements of an array are slow to read
        return lambda row: facts[codes[row]]

    def rows(self, test: Callable[[Facts], bool]) -> list[int]:
        """The rows whose facts pass a test, which runs once for all rows with the same facts."""
        passed = np.fromiter(map(test, self.table.facts), bool, len(self.table.facts))
        return np.flatnonzero(passed[self.table.fact_codes]).tolist()

    def noted(self, kind: str) -> Iterator[tuple[int, Note]]:
        """(row, note) for each note of a kind that `walk` made."""
        yield from ((row, note) for row, notes in self.table.notes.items() for note in notes if note.kind == kind)


class Found(NamedTuple):
    """What a rule yields."""

    row: int
    sentence: str
    fix: str = ""  # Python: {at} is the row's expression, {path} its quoted key path, {tree} the tree; or a `Changed`
    level: Level | None = None  # in place of the rule's level
    note: Note | None = None  # of the walk, about the same problem


Run = Callable[[Checked], Iterator[Found]]


class Rule(NamedTuple):
    """A rule by its code."""

    code: str
    level: Level
    run: Run
    needs: str = ""  # "values" and "roundtrip" run only on request

    @property
    def about(self) -> str:
        return inspect.getdoc(self.run) or ""


RULES: dict[str, Rule] = {}


def rule(code: str, level: Level, needs: str = "") -> Callable[[Run], Run]:
    """Register a rule; its docstring is what `treeviz check --explain CODE` prints."""

    def register(run: Run) -> Run:
        RULES[code] = Rule(code, level, run, needs)
        return run

    return register


# Python that registers a class as a pytree node, or makes a static field a child, derived from an object's contents

_MAX_OBJECTS = 500  # searched for arrays in one attribute
_ITEMS, _VIEWS = type({}.items()), (type({}.keys()), type({}.values()))
_TAKES_ANY = 0x04  # flag of a code object: it has *args


def registration(leaf: Any) -> str:
    """Python that registers the class of a leaf, so that its arrays become children."""
    cls = type(leaf)
    if has_base(cls, set, frozenset):
        return "{at} = list({at})  # a set has no order in which to flatten it"
    if name := stands_for(cls):
        return Changed(f"{name}({{x}})")
    if has_base(cls, types.MappingProxyType):
        return "{at} = dict({at})"
    before, name, module = "", class_name(cls), module_name(cls)
    if "<locals>" in type.__dict__["__qualname__"].__get__(cls):
        name = name.rpartition(".")[2]
        before = f"{name} = type({{at}})\n"
    elif module not in ("__main__", "builtins", ""):
        before = f"from {module} import {name.partition('.')[0]}\n"
    stored = {attribute: value for attribute, value in attributes(leaf) if not attribute.startswith("__")}
    if any(_has_arrays(value) for _, value in items(leaf, _MAX_OBJECTS)[0]):
        of_container = _of_dict if has_base(cls, dict) else _of_sequence
        return before + of_container(leaf, name, [*stored])
    data = [attribute for attribute, value in stored.items() if _has_arrays(value)]
    meta = [attribute for attribute in stored if attribute not in data]
    init = class_attribute(cls, "__init__")
    code = init.__code__ if type(init) is types.FunctionType and stored else None
    keywords = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount] if code else ()
    if code and not code.co_posonlyargcount and {*keywords} == {*stored}:  # the constructor takes exactly these
        return f"{before}jax.tree_util.register_dataclass({name}, data_fields={data!r}, meta_fields={meta!r})"
    base = next(base for base in mro(cls) if type(namespace(base).get("__new__")) is types.BuiltinFunctionType)
    new = f"{name if base is cls else _builtin(base)}.__new__({name})"
    flat = f"[(jax.tree_util.GetAttrKey(n), getattr(x, n)) for n in {data!r}], {_tuple_of(meta)}"
    return before + _with_keys(name, new, [*data, *meta], "[*xs, *meta]", flat)


def stands_for(cls: type) -> str:
    """The container equivalent to one of Python's iterators or dict views, such as "list"; "" for other classes."""
    if has_base(cls, _ITEMS):
        return "dict"
    is_iterator = class_attribute(cls, "__next__") is not None and class_attribute(cls, "__iter__") is not None
    is_known = module_name(cls) in ("builtins", "itertools") and (is_iterator or has_base(cls, *_VIEWS))
    return "list" if is_known else ""


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
    """Python that registers a class whose objects are rebuilt without calling the constructor."""
    lines = [f"new = {new}", *([fill] if fill else [])]
    if attributes:
        lines += [f"for name, value in zip({attributes!r}, {values}):", "    object.__setattr__(new, name, value)"]
    body = "".join(f"    {line}\n" for line in [*lines, "return new"])
    register = f"jax.tree_util.register_pytree_with_keys(\n    {name},\n    lambda x: ({flat}),\n    unflatten,\n)"
    return f"def unflatten(meta, xs):\n{body}\n{register}"


def _constructors(cls: type) -> list[types.CodeType]:
    """The code of the `__new__` and `__init__` that are written in Python."""
    methods = [class_attribute(cls, name) for name in ("__new__", "__init__")]
    functions = [method.__func__ if type(method) is staticmethod else method for method in methods]
    return [function.__code__ for function in functions if type(function) is types.FunctionType]


def _can_be_called(cls: type, others: Collection[str]) -> bool:
    """Whether the constructor accepts the contents and loses no `others`: the builtin one, or one that takes *args."""
    return not others and all(code.co_flags & _TAKES_ANY for code in _constructors(cls))


def _has_arrays(value: Any) -> bool:
    return arrays_in([("", value)], _MAX_OBJECTS).n_arrays > 0


def _tuple_of(names: Collection[str]) -> str:
    return f"({''.join(f'x.{name}, ' for name in names).rstrip()})"


def as_child(node: Any) -> str:
    """Python that makes children of the static fields that hold arrays."""
    cls = type(node)
    name = class_name(cls)
    names = [attribute for attribute, value in aux_attributes(node) if attribute.isidentifier() and _has_arrays(value)]
    if not names:
        return ""
    if class_attribute(cls, "__dataclass_fields__") is not None:
        why = f"# in {name}, without static=True, and in no meta_fields"
        return "\n".join(f"{attribute}: jax.Array  {why}" for attribute in names)
    fields = "".join(f", self.{attribute}" for attribute in names)
    return f"return (*children{fields}), aux  # in tree_flatten of {name}, and without them in aux"


def aux_attributes(node: Any) -> list[tuple[str, Any]]:
    """(name, value) of the stored attributes that are in the auxiliary data. Flattens one level of the node."""
    aux = guarded(lambda: (one_level(node)[1] or (None, None))[1], lambda _: None)
    parts = {id(aux), *_ids(aux), *(part_id for part in (aux if type(aux) is tuple else ()) for part_id in _ids(part))}
    return [(name, value) for name, value in attributes(node) if id(value) in parts]


def _ids(container: Any) -> list[int]:
    entries = () if is_any(type(container), (str, bytes)) else items(container, _MAX_OBJECTS)[0]
    return [id(value) for _, value in entries]
