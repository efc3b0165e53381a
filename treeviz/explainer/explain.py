"""Add a note to an error from JAX that names the leaves at fault; the error itself stays as it is."""

from __future__ import annotations

import ast
import inspect
import operator
import re
import sys
import threading
import types
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from itertools import chain
from types import TracebackType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import tree_util

from treeviz import integrations
from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.analysis.compare.map_mismatch import map_mismatches
from treeviz.analysis.overlay import InAxes, OutAxes, Shardings, Use, find_misfits
from treeviz.api import check
from treeviz.explainer import frames, libraries
from treeviz.explainer.frames import (
    NO_ANSWER,
    Answer,
    Call,
    Calls,
    Variables,
    calls_in_jax,
    describe_value,
    expression_values,
    failed_expression,
    frames_of,
    is_inexact,
    is_jit_value,
    is_of_jax,
    is_of_python,
    is_ref,
    leaves_of,
    leaves_of_arguments,
    names_of,
    refused,
    value_of,
    without_hidden,
)
from treeviz.steps.compiles.types import JitType, LeafType, compare_places, compare_types, is_committed, jit_type
from treeviz.tree.annotations import with_named_axes
from treeviz.tree.describers import load_libraries, static_of
from treeviz.tree.keys import MISSING, keystr, stored_attribute
from treeviz.tree.leaves import describe_sharding
from treeviz.tree.level import one_level
from treeviz.tree.opaque import contents
from treeviz.tree.runtime import Lock, is_installed
from treeviz.tree.text import (
    class_attribute,
    class_name,
    counted,
    guarded,
    has_base,
    is_any,
    printable_lines,
    value_text,
)
from treeviz.tree.walk import scan, walk
from treeviz.views.text.terminal import width_of, wrapped

TIME_LIMIT_S = 1.0
_MOST_LINES = 20
_FILTERING = "jax_traceback_filtering"
_KEEP_FRAMES = "tracebackhide"  # JAX marks its frames but keeps them


def explanation(error: BaseException, limit_s: float = TIME_LIMIT_S) -> str:
    """The leaves that made the call inside JAX fail; "" if the cause is unknown or takes longer than `limit_s`."""
    if not isinstance(error, Exception):
        return ""
    answers: list[str] = []
    explain = partial(guarded, lambda: answers.append(_explanation(error)), lambda _: None)
    worker = threading.Thread(target=explain, daemon=True)
    worker.start()
    worker.join(limit_s)
    return answers[0] if answers else ""


def _explanation(error: Exception) -> str:
    for title, details in _answers(error):
        if details:
            lines = [f"  {line}" for line in details[:_MOST_LINES]]
            if len(details) > _MOST_LINES:
                lines.append(f"  … {len(details) - _MOST_LINES:,} more")
            return printable_lines("\n".join([f"treeviz: {title}:", *lines]))
    return ""


def _answers(error: Exception) -> Iterator[Answer]:
    """Yields answers, outermost calls first: a library or a wrapper in JAX still has the user's trees."""
    calls = calls_in_jax(error)
    nothing = lambda _: NO_ANSWER  # noqa: E731
    buffers_answer = guarded(lambda: frames.explain_buffers(error), nothing)
    if guarded(lambda: frames.is_from_library(error), lambda _: False):
        yield buffers_answer
    for i in reversed(range(len(calls))):
        answer, needs = libraries.ANSWERS.get((calls[i].library, calls[i].function), (None, ()))
        if not calls[i].library:
            answer = OUTER_ANSWERS.get(calls[i].function)
        if answer is not None and all(name in calls[i].variables for name in needs):
            yield guarded(partial(answer, calls[i].variables, [calls[i], *calls[:i]]), nothing)
    for i, call in enumerate(calls):
        answer = None if call.library else ANSWERS.get(call.function)
        if answer is not None:
            yield guarded(partial(answer, call.variables, calls[i:]), nothing)
    yield buffers_answer
    last_answers = [explain_operands, explain_mapped_leaf]
    if guarded(lambda: is_direct(error), lambda _: False):
        last_answers.reverse()
    by_error = (explain_hashes, explain_leaks, libraries.explain_scope, libraries.explain_optax_arguments)
    for answer in (*by_error, *last_answers):
        yield guarded(partial(answer, error), nothing)


class explain_errors:
    """Add to an error from JAX the paths of the leaves that caused it.

        with tv.explain_errors():
            new_params = jax.tree.map(jnp.add, params, grads)

        @tv.explain_errors()
        def train(params, grads):
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    In IPython and Jupyter, one call of `tv.explain_errors()` covers all later cells, and `tv.explain_errors().stop()`
    ends it. With pytest, `pytest -p treeviz.pytest` adds the explanations to the reports.

    Explains errors of:
      JAX: `jax.tree.map`, `jax.tree.transpose`, `vmap`, `pmap`, `shard_map`, `scan`, `while_loop`, `fori_loop`,
        `cond`, `switch`, `jit` and compiled functions, `device_put`, `grad`, `jacfwd`, `jvp`, `vjp`, `checkpoint`,
        `custom_vjp` and `custom_jvp` rules, donated arrays.
      Libraries: optax updates; restores by Orbax, `equinox.tree_deserialise_leaves` and
        `flax.serialization.from_bytes`; `flax.nnx.merge` and `update`; `equinox.tree_at`.

    If the function given to `jax.tree.map` raised, the note names the leaf. If shapes do not match in a Linen, NNX or
    Equinox model, it names the parameters and the input. For static arguments, it names the part without a hash.

    The original error is raised with a note (PEP 678). Only flatten functions of the user run again, and an explanation
    that takes more than a second is dropped. Inside the block, `jax_traceback_filtering` is "tracebackhide", since the
    trees are read from JAX's frames; errors that leave the block have the default filtered traceback.
    """

    def __init__(self) -> None:
        self._shell = _shell()
        self._began = self._shell is not None and _explain_cells(self._shell)

    def __enter__(self) -> explain_errors:
        self.leave_cells()
        keep_frames()
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setting = restore_filtering()
        if error is None:
            return
        add_explanation(error)
        if setting in ("auto", "quiet_remove_frames", "remove_frames") and self._shell is None:
            guarded(lambda: BaseException.with_traceback(error, without_hidden(trace)), lambda _: None)

    def __call__(self, function: Callable) -> Callable:
        self.leave_cells()

        @wraps(function)
        def explained(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return explained

    def leave_cells(self) -> None:
        """Cover no cells from now on, unless they were covered before this object."""
        if self._began:
            self.stop()
        self._began = False

    def stop(self) -> None:
        """Stop explaining the errors of cells."""
        if self._shell is not None:
            _explain_no_cells(self._shell)


def add_explanation(error: BaseException) -> str:
    """Add the explanation to the error as a note, once. Returns it; "" if there is none."""
    notes = guarded(lambda: error.__notes__, lambda _: ())
    if type(notes) is list:
        for note in notes:
            if type(note) is str and note.startswith("treeviz: "):
                return note
    text = guarded(lambda: explanation(error), lambda _: "")
    if text:
        guarded(lambda: error.add_note(fitted(text, width_of(sys.stderr))), lambda _: None)
    return text


def fitted(text: str, width: int | None) -> str:
    """The explanation wrapped to `width`; unchanged if `width` is None."""
    return "\n".join(chain.from_iterable(wrapped(line, width, "    ") for line in text.split("\n")))


_lock = Lock()
_open: list[str | None] = []  # the setting before the first of the open blocks, once for each of them


def keep_frames() -> None:
    """Make JAX keep its frames in tracebacks, which hold the trees, until `restore_filtering` is called as often."""
    with _lock:  # blocks may overlap, also in several threads
        _open.append(_open[0] if _open else getattr(jax.config, _FILTERING, None))
        _set_filtering(_KEEP_FRAMES if _open[0] is not None else None)


def restore_filtering() -> str | None:
    """End one `keep_frames`; the last one restores the setting. Returns the setting before the first one."""
    with _lock:
        before = _open.pop() if _open else None
        if not _open:
            _set_filtering(before)
    return before


def _set_filtering(setting: str | None) -> None:
    if setting is not None:
        guarded(lambda: jax.config.update(_FILTERING, setting), lambda _: None)


def _shell() -> Any:
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def _explain_cells(shell: Any) -> bool:
    """Returns False if cells are explained already."""
    if _explain_cell in shell.events.callbacks.get("post_run_cell", ()):
        return False
    shell.events.register("post_run_cell", _explain_cell)
    return True


def _explain_no_cells(shell: Any) -> None:
    if _explain_cell in shell.events.callbacks.get("post_run_cell", ()):
        shell.events.unregister("post_run_cell", _explain_cell)


def _explain_cell(result: Any) -> None:
    """Print the explanation of a cell's error below its traceback."""
    error = getattr(result, "error_in_exec", None)
    text = "" if error is None else add_explanation(error)
    if text:
        print(fitted(text, width_of(sys.stdout)))


# Answers from the frames of an error: the mapped leaf, the arrays of a failed call, and values that have no hash

_MAPS = "tree_map", "tree_map_with_path"
_VARIABLE_SUFFIXES = ".value", "._value", ".raw_value"  # the array inside an NNX variable
_MOST_VARIABLES = 300


def explain_mapped_leaf(error: BaseException) -> Answer:
    """The leaf for which the function of `jax.tree.map` raised."""
    frames = frames_of(error)
    i = _innermost_map(frames)
    map_vars, loop_vars = frames[i - 1].f_locals, frames[i].f_locals
    if frames[i - 1].f_code.co_name == _MAPS[1]:
        path, leaves = keystr(loop_vars["xs"][0]), loop_vars["xs"][1:]
    else:
        leaves, iterators = loop_vars["xs"], loop_vars[".0"].__reduce__()[1]
        n = len(map_vars["leaves"]) - operator.length_hint(iterators[0]) - 1
        if map_vars["leaves"][n] is not leaves[0]:
            return NO_ANSWER
        path = _path_of(n, map_vars["tree"], map_vars["treedef"])
    file = next((frame.f_code.co_filename for frame in reversed(frames[:i]) if _is_outside(frame)), "")
    title = "the function that jax.tree.map calls raised"
    if is_installed(file):  # the tree may be internal to the library
        if not path:  # a single leaf: there is no path to report
            return NO_ANSWER
        package = file.replace("\\", "/").rpartition("-packages/")[2].partition("/")[0].removesuffix(".py")
        title = f"in {package}, {title}"
    return title, [f"{path or 'the root'}: {' and '.join(map(describe_value, leaves))}"]


def is_direct(error: BaseException) -> bool:
    """Whether the function that `jax.tree.map` calls raised itself, not a function that it calls."""
    frames = frames_of(error)
    i = _innermost_map(frames)
    return sum(map(_is_outside, frames[i + 1 :])) < 2


def _innermost_map(frames: Sequence[types.FrameType]) -> int:
    """The index of the frame of the innermost loop over leaves. Raises StopIteration if there is none."""
    names = [frame.f_code.co_name if is_of_jax(frame) else "" for frame in frames]
    return next(i for i in reversed(range(1, len(names))) if names[i - 1] in _MAPS and names[i] == "<genexpr>")


def _path_of(n: int, node: Any, treedef: Any) -> str:
    """The path of the n-th leaf. Flattens only the nodes on the way to it."""
    path = []
    while treedef.node_data() is not None:
        children = treedef.children()
        i = 0
        while n >= children[i].num_leaves:
            n, i = n - children[i].num_leaves, i + 1
        (key,), node = one_level(node)[0][i]
        path.append(key)
        treedef = children[i]
    return keystr(tuple(path))


def explain_operands(error: BaseException) -> Answer:
    """The paths of the arrays that JAX could not combine, within the user's variables, such as a layer of a model."""
    if not isinstance(error, TypeError | ValueError):
        return NO_ANSWER
    frames = frames_of(error)
    last = next((i for i in reversed(range(len(frames))) if _is_outside(frames[i])), len(frames))
    if last >= len(frames) - 1 or not is_of_jax(frames[last + 1]):
        return NO_ANSWER
    arrays = {id(array): array for array in _array_arguments(frames[last + 1])}
    if not arrays:
        return NO_ANSWER
    places = _places(arrays, [frame for frame in frames[: last + 1] if _is_outside(frame)])
    if not any("".join(paths) for _, paths in places.values()):
        return NO_ANSWER
    lines = []
    for key, array in arrays.items():
        name, paths = places.get(key, ("a computed array", [""]))
        place = " and ".join(name + path for path in paths[:2]) + (" …" if len(paths) > 2 else "")
        lines.append(f"{place}: {describe_value(array)}")
    return "the arrays of the call that failed", lines


def _is_outside(frame: types.FrameType) -> bool:
    return not is_of_jax(frame) and not is_of_python(frame)


def _array_arguments(frame: types.FrameType) -> Iterator[Any]:
    """The arrays, also inside lists as in `jnp.concatenate`. Deeper trees, as in `jit`, have answers of their own."""
    names, varargs, _, frame_vars = inspect.getargvalues(frame)
    for value in [*(frame_vars[name] for name in names if name in frame_vars), *frame_vars.get(varargs or "", ())]:
        for item in value if is_any(type(value), (list, tuple)) else (value,):
            if guarded(lambda item=item: isinstance(item, jax.Array | np.ndarray), lambda _: False):
                yield item


def _places(arrays: Mapping[int, Any], frames: Sequence[types.FrameType]) -> dict[int, tuple[str, list[str]]]:
    """Maps the id of each array to its variable and its paths in it. The user's trees come before a library's."""
    first_arguments = frames[-1].f_code.co_varnames[: frames[-1].f_code.co_argcount][:1]
    owner = frames[-1].f_locals.get(first_arguments[0]) if first_arguments else None  # self
    by_name: dict[int, tuple[str, list[str]]] = {}
    owner_places: dict[int, tuple[str, list[str]]] = {}
    candidates: list[tuple[bool, str, Any]] = []
    for frame in sorted(frames, key=lambda frame: is_installed(frame.f_code.co_filename)):  # stable
        for name, value in [*frame.f_locals.items()][:_MOST_VARIABLES]:
            if id(value) in arrays:
                by_name[id(value)] = name, [""]  # the innermost frame has the name used in the call
            elif not has_base(type(value), types.ModuleType, types.FunctionType, type):
                candidates.append((is_installed(frame.f_code.co_filename), name, value))
            if owner is not None and value is owner:
                owner_places.setdefault(id(value), (name, [""]))
    in_trees: dict[int, tuple[str, list[str]]] = {}
    seen: set[int] = set()
    wanted = {*arrays, id(owner)}
    for is_of_library, name, value in candidates:
        if id(value) in seen or tree_util.all_leaves((value,)):
            continue
        seen.add(id(value))
        # In a library, "args[0]" is a worse name than the function's own variable.
        known = {*in_trees, *by_name} if is_of_library and is_any(type(value), (tuple, list, dict)) else in_trees.keys()
        for key, paths in _paths_in(value, wanted - known).items():
            in_trees[key] = name, paths
    in_trees = {**owner_places, **in_trees}
    own = None if owner is None else in_trees.get(id(owner))
    # Local variables of a method that have the name and shape of an attribute, such as `w = self.w.astype(…)`.
    for name, value in frames[-1].f_locals.items() if own is not None else ():
        stored = stored_attribute(owner, name) if id(value) in arrays and id(value) not in in_trees else MISSING
        if own is not None and stored is not MISSING:
            leaves = guarded(lambda stored=stored: tree_util.tree_leaves(stored), lambda _: [])
            if len(leaves) == 1 and getattr(leaves[0], "shape", None) == value.shape:
                in_trees[id(value)] = own[0], [f"{path}.{name}" for path in own[1]]
    return {key: place for key, place in {**by_name, **in_trees}.items() if key in arrays}


def _paths_in(tree: Any, wanted: set[int]) -> dict[int, list[str]]:
    table, nodes = scan(tree)
    rows = [row for row, node in enumerate(nodes) if id(node) in wanted] if len(nodes) > 1 else []
    keystr_of, paths_by_id = table.keystrs(), {}
    for row in rows:
        path = keystr_of(row)
        path = next((path.removesuffix(end) for end in _VARIABLE_SUFFIXES if path.endswith(end)), path)
        paths_by_id.setdefault(id(nodes[row]), []).append(path)
    return paths_by_id


# Tracers that a traced function stored outside itself

_MOST_OBJECTS = 5_000


def explain_leaks(error: BaseException) -> Answer:
    """Where the tracers are that a traced function stored outside itself."""
    if not isinstance(error, jax.errors.UnexpectedTracerError):
        return NO_ANSWER
    frames, outer, pending = frames_of(error), True, deque[tuple[str, Any]]()
    for frame in frames:
        outer = outer and not is_of_jax(frame)
        if _is_outside(frame):
            code, frame_vars = frame.f_code, frame.f_locals
            # Where a function is traced, the tracers of its own variables are alive.
            names = [*(frame_vars if outer else code.co_freevars), *code.co_names]
            known = {**frame.f_globals, **frame_vars}
            pending += [(name, known[name]) for name in names[:_MOST_VARIABLES] if name in known]
    found: dict[int, tuple[str, str]] = {}
    seen: set[int] = set()
    while pending and len(seen) < _MOST_OBJECTS:
        path, value = pending.popleft()
        if id(value) in seen or has_base(type(value), types.ModuleType, type):
            continue
        seen.add(id(value))
        if has_base(type(value), jax.core.Tracer):
            found[id(value)] = path, describe_value(value)
        else:
            pending += [(path + step, inner) for step, inner in contents(value)]
    message = str(error)
    is_meant = [text for _, text in found.values() if f"with type {text} " in message]
    lines = [f"{path}: {text}" for path, text in found.values() if text in is_meant or not is_meant]
    maker = re.search(r"value leaked was (.+? at .+?) traced for", message)
    return f"tracers that {maker[1] if maker else 'a traced function'} stored instead of returning them", lines


# Calls of `jax.jit` that fail since a static argument, a part of one, or static data of a node has no hash.

_STATIC = "static arguments"
_METADATA = "metadata fields of pytree"
_REMEDIES = {
    list: "make it a tuple",
    dict: "make it a tuple of its items, or a frozen dataclass",
    set: "make it a frozenset",
}


def explain_hashes(error: BaseException) -> Answer:
    message = error.args[0] if isinstance(error, ValueError) and error.args else None
    if type(message) is str and "on-hashable" in message and _STATIC in message:
        load_libraries()  # which describe the static data of their nodes
        arguments = [(name, part) for name, argument in _static_arguments(error) for part in _without_hash(argument)]
        lines = [f"{name}{path}: {_with_remedy(value)}" for name, (path, value) in arguments]
        return "a static argument of jit must have a hash", lines
    if type(message) is str and _METADATA in message:
        lines = {
            f"{name}{finding.path}: {finding.sentence}"
            for name, tree in expression_values(error)
            for finding in guarded(partial(check, tree, for_="jit"), lambda _: ())
            if finding.code in ("T101", "T102", "T103")
        }
        return "jit compares static data, which must have a hash", sorted(lines)
    return NO_ANSWER


def _static_arguments(error: BaseException) -> Iterator[tuple[str, Any]]:
    frame_vars = next((call.variables for call in calls_in_jax(error) if call.function == "_infer_params"), None)
    if frame_vars is not None:
        yield from _static_values(frame_vars["ji"], frame_vars["args"], frame_vars["kwargs"])
        return
    call, variables = failed_expression(error)
    if not isinstance(call, ast.Call) or any(isinstance(arg, ast.Starred) for arg in call.args):
        return
    function, bound = _resolve_function(call.func, variables)
    info = _jit_options_in_source(call.func) if function is MISSING else _jit_options_of(function)
    if info is not None:
        args = [*bound, *(_argument(arg, variables) for arg in call.args)]
        kwargs = {keyword.arg: _argument(keyword.value, variables) for keyword in call.keywords if keyword.arg}
        yield from _static_values(info, args, kwargs)


def _jit_options_of(function: Any) -> Any:
    """The static arguments of a jitted function, from its pickled state; `jax_private` would make JAX trace anew."""
    if type(function) is not type(jax.jit(_jit_options_of)):
        return None
    state: Any = function.__getstate__()
    return types.SimpleNamespace(static_argnums=state["static_argnums"], static_argnames=state["static_argnames"])


def _jit_options_in_source(node: ast.AST) -> Any:
    """The static arguments of `jax.jit(f, static_argnums=1)(…)`."""
    options = {keyword.arg: keyword.value for keyword in node.keywords} if isinstance(node, ast.Call) else {}
    nodes = [options.get(name) for name in ("static_argnums", "static_argnames")]
    values = [() if option is None else ast.literal_eval(option) for option in nodes]
    numbers, names = (value if isinstance(value, tuple | list) else (value,) for value in values)
    return types.SimpleNamespace(static_argnums=numbers, static_argnames=names)


def _static_values(info: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for i in sorted({i % len(args) for i in info.static_argnums if -len(args) <= i < len(args)}):
        yield f"argument {i}", args[i]
    for name in info.static_argnames:
        if name in kwargs:
            yield f"argument {name}", kwargs[name]


def _resolve_function(node: ast.AST, variables: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """The function, and the object it is bound to."""
    function = value_of(node, variables)
    if function is MISSING and isinstance(node, ast.Attribute):
        owner = value_of(node.value, variables)
        if owner is not MISSING and not isinstance(owner, type):
            return class_attribute(type(owner), node.attr, MISSING), [owner]
    return function, []


def _argument(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    value = value_of(node, variables)
    return guarded(lambda: ast.literal_eval(node), lambda _: None) if value is MISSING else value


def _without_hash(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts that leave an object without a hash. Reads only classes: no `__hash__` runs."""
    pending = [("", value)]
    while pending:
        path, current = pending.pop()
        cls = type(current)
        if cls.__hash__ is None or isinstance(current, jax.Array):
            yield path, current
        elif cls.__hash__ is tuple.__hash__:
            names = [f".{name}" for name in getattr(cls, "_fields", ())] or [f"[{i}]" for i in range(len(current))]
            pending += [(path + name, part) for name, part in zip(names, tuple.__iter__(current), strict=True)][::-1]
        elif isinstance(current, types.MethodType):
            pending.append((f"{path}.__self__", current.__self__))
        elif described := static_of(current):
            pending += [(f"{path}.{name}", part) for name, part in described][::-1]
        elif is_dataclass(cls) and getattr(getattr(cls.__hash__, "__code__", None), "co_filename", "") == "<string>":
            hashed = [field for field in fields(cls) if (field.compare if field.hash is None else field.hash)]
            values = [(field.name, stored_attribute(current, field.name)) for field in hashed]
            pending += [(f"{path}.{name}", part) for name, part in values if part is not MISSING][::-1]


def _with_remedy(value: Any) -> str:
    if isinstance(value, jax.Array | np.ndarray):
        return f"{describe_value(value)}: pass it as an argument that is not static"
    if is_any(type(value), _REMEDIES):
        return f"{describe_value(value)}: {_REMEDIES[type(value)]}"
    name = class_name(type(value))
    frozen = f"@dataclasses.dataclass(frozen=True) on {name}"
    return f"{name}: {frozen if is_dataclass(type(value)) else f'give {name} __hash__ and __eq__'}"


# Calls that failed inside JAX, by the function of JAX that raised.
#
# If JAX renames a function or its variables, that error loses its explanation and nothing else breaks. To add an
# answer, write a function of the variables of the failed call and of the calls, innermost first, and list it in
# `ANSWERS`, and the place of JAX's function in `jax_private.TO_EXPLAIN`, where a test sees that JAX has moved it.

# Specs that do not match their trees: `vmap`, `pmap`, `shard_map`, shardings and placement.


class _TextKey(NamedTuple):
    """A key that is shown as its text alone: "kwargs"."""

    text: str

    def __str__(self) -> str:
        return self.text


@tree_util.register_pytree_with_keys_class
class _NamedChildren:
    """A node whose children have such keys."""

    def __init__(self, names: Iterable[str], children: Iterable[Any]) -> None:
        self._names, self._children = tuple(names), tuple(children)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        return [*zip(map(_TextKey, self._names), self._children, strict=True)], self._names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], children: Iterable[Any]) -> _NamedChildren:
        return cls(names, children)


class _AxesOfArguments(InAxes):
    """`InAxes` for arguments that are not in a tuple."""

    align = Use.align


def _spec_differences(use: Use, specs: Any, tree: Any, names: Sequence[str] = ()) -> Differences:
    """The differences between a tree and its specs; with names, between named trees and one spec for each."""
    integrations.load()
    table, nodes = scan(_NamedChildren(names, tree) if names else tree)
    side = Side(with_named_axes(table, nodes), nodes)
    return find_misfits(_NamedChildren(names, specs) if names else specs, side, use, None).differences


def explain_vmap(frame_vars: Variables, calls: Calls) -> Answer:
    args, kwargs, in_axes = frame_vars["args"], frame_vars["kwargs"], frame_vars["in_axes"]
    differences = _spec_differences(InAxes(), in_axes, args)
    if not differences and kwargs:  # vmap maps keyword arguments along axis 0
        names = [*(f"[{i}]" for i in range(len(args))), "kwargs"]
        specs = [*(in_axes if is_any(type(in_axes), (tuple, list)) else [in_axes] * len(args)), 0]
        misfits = _spec_differences(_AxesOfArguments(), specs, [*args, kwargs], names)
        differences = Differences(misfit for misfit in misfits if misfit.kind in ("size", "axis"))
    return "in_axes does not fit the arguments", differences


def explain_vmap_result(frame_vars: Variables, calls: Calls) -> Answer:
    """`vmap`: the function returned a value that is not an array, or that `out_axes` does not match."""
    outs = frame_vars["outs"]
    out_tree = next(call.variables["out_tree"] for call in calls if call.function == "vmap_f")
    names = paths(out_tree())
    if lines := refused(zip((f"result{path}" for path in names), outs, strict=True)):
        return "vmap returns only arrays and numbers", lines
    avals = [jax.ShapeDtypeStruct(out.shape, out.dtype) if hasattr(out, "shape") else out for out in outs]
    return "out_axes does not fit the result", _spec_differences(OutAxes(), frame_vars["out_dim_dests"], avals, names)


def explain_prefix(frame_vars: Variables, calls: Calls) -> Answer:
    """`out_axes`, `in_shardings`, `out_shardings` and `device_put`."""
    if frame_vars.get("name") == "vmap in_axes":  # `explain_vmap` explains it better
        return NO_ANSWER
    name = frame_vars.get("name") or frame_vars.get("what") or "the prefix"
    return _explain_not_a_prefix(name, frame_vars["axis_tree"], frame_vars["dummy_tree"])


def explain_broadcast(frame_vars: Variables, calls: Calls) -> Answer:
    """`jax.tree.broadcast`, and `shard_map` and `pmap`, which call it."""
    frame_vars = next(call.variables for call in calls if call.function == "broadcast_prefix")
    name = "out_specs" if any(map(_is_shard_map, calls)) else "the prefix"
    if any("infer_params" in call.variables for call in calls):
        name = "out_axes"
    return _explain_not_a_prefix(name, frame_vars["prefix_tree"], frame_vars["full_tree"])


def _explain_not_a_prefix(name: str, prefix: Any, tree: Any) -> Answer:
    differences = map_mismatches(prefix, tree, is_leaf=lambda node: node is None)
    words = {"missing": "in the prefix, but not in the tree", "extra": "in the tree, but not in the prefix"}
    return f"{name} is not a prefix of the tree", [
        f"{difference.path or 'the root'}: {words[difference.kind]}" if difference.kind in words else difference
        for difference in differences
    ]


def explain_shardings(frame_vars: Variables, calls: Calls) -> Answer:
    """`in_shardings`, with one spec per argument, and `out_shardings`."""
    if not str(frame_vars["what"]).endswith("in_shardings"):
        return explain_prefix(frame_vars, calls)
    specs = _with_none(frame_vars["shardings"])
    frame_vars = next(call.variables for call in calls if call.function == "_infer_params")
    args, static = frame_vars["args"], getattr(frame_vars["ji"], "static_argnums", ())
    args = tuple(arg for i, arg in enumerate(args) if i not in {n % len(args) for n in static})
    title = "in_shardings does not fit the arguments"
    if type(specs) is not tuple:
        differences = _spec_differences(Shardings(), (specs,), args)
        hint = "" if differences else ": put it into a tuple, in_shardings=(…,)"
        return title, [f"the root: it must be a tuple with one spec for each argument{hint}"]
    return title, _argument_differences(specs, args, Shardings())


def _with_none(specs: Any) -> Any:
    """Restores the None values that JAX replaced by a marker in dicts, lists and tuples."""
    if type(specs) is dict:
        return {key: _with_none(spec) for key, spec in specs.items()}
    if is_any(type(specs), (list, tuple)):
        return type(specs)(map(_with_none, specs))
    return None if type(specs).__name__ == "UnspecifiedValue" else specs


def _argument_differences(specs: Any, args: tuple, use: Use) -> list[Any]:
    """The differences between specs and arguments, including missing and surplus specs."""
    if type(specs) is not tuple:
        return _spec_differences(use, specs, args)
    n = min(len(specs), len(args))
    surplus = [f"[{i}]: {value_text(spec, 60)}: a spec without an argument" for i, spec in enumerate(specs[n:], n)]
    missing = [
        f"{path}: {describe_value(leaf)}: no spec"
        for i, arg in enumerate(args[n:], n)
        for path, leaf in leaves_of(arg, f"[{i}]")
    ]
    return [*_spec_differences(use, specs[:n], args[:n]), *surplus, *missing]


def explain_divisibility(frame_vars: Variables, calls: Calls) -> Answer:
    """`jit`, `device_put` and `with_sharding_constraint`: a sharding does not divide its array."""
    outer = next((call for call in calls if call.function in ("device_put", "with_sharding_constraint")), calls[0])
    names, specs, avals = frame_vars.get("names") or (), frame_vars["shardings"], frame_vars["flat_avals"]
    if "x" in outer.variables:
        names = [path or "the array" for path, _ in leaves_of(outer.variables["x"])]
    if outer.function == "device_put":
        specs, avals = outer.variables["device_flat"], outer.variables["x_avals"]
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    specs = [spec if isinstance(spec, jax.sharding.Sharding) else None for spec in specs]
    return "shardings do not fit the arrays", _spec_differences(Shardings(), specs, avals, [*map(str, names)])


def _is_shard_map(call: Call) -> bool:
    return call.function == "wrapped" and {"in_specs", "mesh", "args"} <= call.variables.keys()


def explain_wrapper(frame_vars: Variables, calls: Calls) -> Answer:
    """`shard_map` and `pmap`, which have flattened their trees before the error is raised."""
    args = frame_vars["args"]
    if _is_shard_map(calls[0]):
        use = Shardings(frame_vars["mesh"])
        return _explain_arguments("shard_map", "in_specs", frame_vars["in_specs"], args, use)
    infer = frame_vars["infer_params"]
    closure = dict(zip(infer.__code__.co_freevars, infer.__closure__, strict=True))
    if frame_vars["kwargs"] or closure["static_broadcasted_tuple"].cell_contents:
        return NO_ANSWER
    in_axes = closure["in_axes"].cell_contents
    title, differences = _explain_arguments("pmap", "in_axes", in_axes, args, InAxes())
    if differences:
        return title, differences
    n = len(closure["devices"].cell_contents or jax.local_devices())
    return f"pmap maps an axis over {counted(n, 'device')}", [
        f"{path}: {describe_value(leaf)}: axis {in_axes} has {leaf.shape[in_axes]:,}"
        for path, leaf in leaves_of(args)
        if leaf.shape[in_axes] > n
    ]


def _explain_arguments(function: str, name: str, specs: Any, args: Any, use: Use) -> Answer:
    if lines := refused(leaves_of(args)):
        return f"{function} accepts only arrays and numbers", lines
    return f"{name} does not fit the arguments", _argument_differences(specs, args, use)


def explain_out_specs(frame_vars: Variables, calls: Calls) -> Answer:
    """`shard_map`: the specs do not match the function's result."""
    outer_vars = next(filter(_is_shard_map, calls)).variables
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in frame_vars["avals"]]
    names = [path or "the result" for path in paths(outer_vars["out_tree"])]
    differences = _spec_differences(Shardings(outer_vars["mesh"]), frame_vars["specs"], avals, names)
    return "out_specs does not fit the result", differences


def explain_devices(frame_vars: Variables, calls: Calls) -> Answer:
    """`jit`: the arrays that are not on the devices of most others."""
    frame_vars = next(call.variables for call in calls if {"args", "kwargs", "args_flat"} <= call.variables.keys())
    placed = [
        (path, leaf, place.device_ids)
        for path, leaf in leaves_of_arguments(frame_vars["args"], frame_vars["kwargs"])
        if is_committed(leaf) and (place := describe_sharding(leaf.sharding)) is not None
    ]
    counts = Counter(devices for _, _, devices in placed).most_common()
    if len(counts) < 2:
        return NO_ANSWER
    usual = counts[0][0] if counts[0][1] > counts[1][1] else None
    return "the arrays are committed to different devices", [
        f"{path}: {describe_value(leaf)}, on {_device_text(devices)}"
        for path, leaf, devices in placed
        if devices != usual
    ] + ([] if usual is None else [f"the other {counts[0][1]:,} on {_device_text(usual)}"])


def _device_text(devices: Sequence[int]) -> str:
    return f"{'device' if len(devices) == 1 else 'devices'} {', '.join(map(str, devices))}"


def paths(treedef: Any) -> list[str]:
    return [leaf.keystr for leaf in walk(treedef).leaves]


# Loops and branches: carries, conditions, lengths, and results of branches.


def explain_carry(frame_vars: Variables, calls: Calls) -> Answer:
    """`scan`, `fori_loop` and `while_loop`: the carry changes type between input and output."""
    if "out_carry" in frame_vars:
        flats = (frame_vars[name] for name in ("in_carry", "out_carry"))
        type_in, type_out = (_strong(flat.tree, flat.vals) for flat in flats)
        loop = next(call for call in calls[1:] if call.function in ("scan", "while_loop"))
        init = loop.variables["args" if loop.function == "scan" else "init_val_flat"].unflatten()
        init = init[0] if loop.function == "scan" else init
    else:  # jax < 0.5
        init, type_in = frame_vars["in_carry"], jit_type(frame_vars["in_carry"])
        type_out = JitType(frame_vars["out_carry_tree"], [LeafType(aval) for aval in frame_vars["out_avals"]])
    outer_names = [call.function for call in calls[1:]]
    carry_path = ""  # fori_loop also carries its counters
    if "fori_loop" in outer_names:
        carry_path = "[1]" if "scan" in outer_names else "[2]"
    differences = [
        Difference(path.removeprefix(carry_path), *finding, tree=1)
        for path, finding in compare_types(init, type_in, type_out)
    ]
    return "the carry changes type between input and output", differences


def explain_branches(frame_vars: Variables, calls: Calls) -> Answer:
    """`cond` and `switch`: the branches return different types."""
    types = (_strong(flat.tree, flat.vals) for flat in (frame_vars["out_avals1"], frame_vars["out_avals2"]))
    differences = compare_types(frame_vars["outs1"], *types)
    first, second = (re.sub(r"^branch(?=\d)", "branch ", frame_vars[name]) for name in ("name1", "name2"))
    title = f"what {first} and {second} return differs"
    return title, [Difference(path, *finding, tree=1) for path, finding in differences]


def _strong(treedef: Any, avals: Iterable[Any]) -> JitType:
    """A type without weak types, which `cond`, loops and tangents ignore."""
    strong = [guarded(lambda aval=aval: aval.strip_weak_type(), lambda _, aval=aval: aval) for aval in avals]
    return JitType(treedef, [LeafType(aval) for aval in strong])


def _strong_type(tree: Any) -> JitType:
    given = jit_type(tree)
    return _strong(given.treedef, [leaf.aval for leaf in given.leaves])


def explain_cond_fun(frame_vars: Variables, calls: Calls) -> Answer:
    """`while_loop`: the condition is not a boolean scalar. Also lists the carry leaves it is computed from."""
    closed = frame_vars["cond_jaxpr"]
    tree = frame_vars["cond_out_avals"].tree if "cond_out_avals" in frame_vars else frame_vars["cond_tree"]
    tree_paths, avals, title = paths(tree), closed.out_avals, "cond_fun of while_loop must return one boolean"
    if not tree_util.treedef_is_leaf(tree) or len(avals) != 1:
        lines = [f"{path} of the result: {aval.str_short()}" for path, aval in zip(tree_paths, avals, strict=True)]
        return title, lines or ["it returns nothing"]
    aval = avals[0]
    if aval.shape == () and aval.dtype == bool:
        return NO_ANSWER
    fix = "reduce it, as by .all() or .any()" if aval.shape else "compare it, as by != 0"
    carry = next(call for call in calls[1:] if call.function == "while_loop").variables
    names = leaves_of(carry["init_val_flat"].unflatten() if "init_val_flat" in carry else carry["init_val"])
    jaxpr = closed.jaxpr
    needed = set(map(id, jaxpr.outvars))
    for eqn in reversed(jaxpr.eqns):
        if any(id(var) in needed for var in eqn.outvars):
            needed.update(map(id, eqn.invars))
    inputs = zip(names, jaxpr.invars, strict=False)
    sources = [name for name, var in inputs if id(var) in needed and var.aval.shape == aval.shape != ()]
    return title, [
        f"the result: {aval.str_short()}: {fix}",
        *(f"it is made of the carry{name}: {describe_value(leaf)}" for name, leaf in sources),
    ]


def explain_scanned(frame_vars: Variables, calls: Calls) -> Answer:
    """`scan`: the leaves of `xs` whose first axis differs in length from most others."""
    frame_vars = next(call.variables for call in calls if call.function == "scan")
    xs = frame_vars["args"].unflatten()[1] if "args" in frame_vars else frame_vars["xs"]
    return _explain_lengths("scan runs along the first axis", leaves_of(xs, "xs"), 0, frame_vars.get("length"))


def explain_associative_scan(frame_vars: Variables, calls: Calls) -> Answer:
    axis = frame_vars["axis"]
    return _explain_lengths(f"associative_scan runs along axis {axis}", leaves_of(frame_vars["elems"]), axis)


def _explain_lengths(title: str, leaves: Sequence[tuple[str, Any]], axis: int, usual: int | None = None) -> Answer:
    """The leaves that are not as long as `usual`, or as most others."""
    lengths = [leaf.shape[axis] if getattr(leaf, "shape", ()) else None for _, leaf in leaves]
    if not usual:
        most = Counter(n for n in lengths if n is not None).most_common(2)
        usual = most[0][0] if len(most) < 2 or most[0][1] > most[1][1] else None
    return title + (f", here of {usual}" if usual else ""), [
        f"{path or 'the argument'}: {describe_value(leaf)}"
        for (path, leaf), n in zip(leaves, lengths, strict=True)
        if n != usual
    ]


_TAKE_ARRAYS = {
    "vmap_f": "args",
    "scan": "args",
    "cond": "operands",
    "while_loop": "init_val_flat",
    "fun_remat": "args",
    "device_put": "x",
}
_IN_CALL = {"[0]": "args", "[1]": "kwargs"}


def _explain_map(frame_vars: Variables, calls: Calls) -> Answer:
    differences = map_mismatches(frame_vars["tree"], *frame_vars["rest"], is_leaf=frame_vars["is_leaf"])
    several = len(frame_vars["rest"]) > 1
    return "the trees do not match", [
        f"tree {difference.tree}: {difference}" if several else difference for difference in differences
    ]


def _explain_jvp(frame_vars: Variables, calls: Calls) -> Answer:
    """`jvp`, and a `custom_jvp` rule."""
    is_rule = "py_primals_out" in frame_vars
    primals, tangents = ("py_primals_out", "py_tangents_out") if is_rule else ("primals", "tangents")
    primals_type = jit_type(frame_vars[primals])
    avals = [leaf.aval for leaf in primals_type.leaves]
    names = ("primals", "tangents")
    differences = _tangent_differences(frame_vars[tangents], primals_type.treedef, avals, names)
    return f"primals and tangents {'that the custom_jvp rule returns ' * is_rule}do not match", differences


def _explain_pullback(frame_vars: Variables, calls: Calls) -> Answer:
    """The functions that `vjp` and `linear_transpose` return: the cotangent does not match."""
    if "in_tree_expected" in frame_vars:  # jax < 0.8
        tree, given, avals = frame_vars["in_tree_expected"], frame_vars["py_args"], frame_vars["out_primal_avals"]
    else:
        tree, given = frame_vars["out_tree"], frame_vars["out_ct" if "out_ct" in frame_vars else "out_cotangent"]
        tree = tree() if callable(tree) else tree  # of linear_transpose
        avals = frame_vars["out_primal_avals" if "out_primal_avals" in frame_vars else "out_avals"]
    differences = _tangent_differences(given, tree, avals, ("result", "cotangent"))
    return "the cotangent does not match the result", [
        difference
        for difference in differences
        if (difference.kind, difference.left) != ("dtype", "float0")  # JAX accepts any dtype here
    ]


def _explain_custom_vjp(frame_vars: Variables, calls: Calls) -> Answer:
    """A `custom_vjp` rule. JAX accepts None, and a leaf in place of a node."""
    given, names = frame_vars["py_cts_in"], ("arguments", "result")
    differences = _tangent_differences(given, frame_vars["in_tree"], frame_vars["in_avals"], names)
    leaves = dict(leaves_of(given))
    return "the result of the custom_vjp rule does not match the arguments", [
        difference
        for difference in differences
        if (difference.kind, difference.right) != ("none", "None")
        and not (difference.kind == "leaf" and difference.path in leaves)
    ]


def _tangent_differences(tree: Any, treedef: Any, avals: Iterable[Any], names: tuple[str, str]) -> list[Difference]:
    """The differences between tangents or cotangents and their primals, which have float0 for integers."""
    to_tangents = [
        getattr(aval, "to_tangent_aval", None) or getattr(aval, "at_least_vspace", lambda aval=aval: aval)
        for aval in avals
    ]
    wanted = _strong(treedef, [to_tangent() for to_tangent in to_tangents])
    findings, float0 = compare_types(tree, wanted, _strong_type(tree), is_right=True), str(jax.dtypes.float0)
    return [
        Difference(path, *("float0" if text == float0 else text for text in finding), tree=1, names=names)
        for path, finding in findings
    ]


def _explain_transpose(frame_vars: Variables, calls: Calls) -> Answer:
    """`jax.tree.transpose`: where the tree differs from the outer one, or the inner trees from the first one."""
    outer, inner, tree = (frame_vars[name] for name in ("outer_treedef", "inner_treedef", "pytree_to_transpose"))
    misfits = map_mismatches(_of_zeros(outer), tree)
    if misfits:
        return "outer_treedef is no prefix of the tree", misfits
    parts = outer.flatten_up_to(tree)
    like = next((part for part in parts if tree_util.tree_structure(part) == inner), None)
    if like is None and inner is not None:
        like = _of_zeros(inner)
    ids = {*map(id, parts)}
    paths = tree_util.tree_flatten_with_path(outer.unflatten(parts), is_leaf=lambda node: id(node) in ids)[0]
    return "the trees to transpose do not match", [
        f"in {keystr(path)}: {difference}"
        for (path, _), part in zip(paths, parts, strict=True)
        for difference in map_mismatches(like, part)
    ]


def _of_zeros(treedef: Any) -> Any:
    return treedef.unflatten([0] * treedef.num_leaves)


def _explain_argument_types(frame_vars: Variables, calls: Calls) -> Answer:
    """`jit`: the leaves that are not arrays."""
    if _STATIC in str(calls[0].error):  # `explain_hashes` explains it
        return NO_ANSWER
    args, kwargs, options = (frame_vars[name] for name in ("args", "kwargs", "ji"))
    static = {i % len(args) for i in getattr(options, "static_argnums", ()) if -len(args) <= i < len(args)}
    args = [None if i in static else arg for i, arg in enumerate(args)]
    kwargs = {name: arg for name, arg in kwargs.items() if name not in getattr(options, "static_argnames", ())}
    return "jit accepts only arrays and numbers", refused(leaves_of_arguments(args, kwargs))


def _explain_returned(frame_vars: Variables, calls: Calls) -> Answer:
    """A traced function: the leaves of its result that are not arrays."""
    paths = getattr(frame_vars["dbg"], "result_paths", None)
    outs = frame_vars["out_tracers"]
    names = [*map(str, paths)] if isinstance(paths, tuple | list) else [""] * len(outs)
    leaves = zip([name or "the result" for name in names], outs, strict=True)
    return "the function returns a non-array", refused(leaves)


def _explain_compiled(frame_vars: Variables, calls: Calls) -> Answer:
    """A function compiled ahead of time: the arguments differ from those it was compiled for."""
    compiled = next(call.variables["self"] for call in calls if call.function == "__call__")
    given = frame_vars["args"], frame_vars["kwargs"]
    leaves, treedef = tree_util.tree_flatten(compiled.args_info)
    wanted = _strong(treedef, [leaf._aval for leaf in leaves])
    return "the step was compiled for other arguments", [
        Difference(_IN_CALL.get(path[:3], "") + path[3:], *finding, tree=1, names=("compiled", "given"))
        for path, finding in compare_types(given, wanted, _strong_type(given), is_right=True)
    ]


def _explain_compiled_shardings(frame_vars: Variables, calls: Calls) -> Answer:
    """A function compiled ahead of time: the arguments whose sharding changed."""
    wanted = frame_vars["in_shardings" if "in_shardings" in frame_vars else "in_xla_shardings"]
    given = frame_vars["args" if "args" in frame_vars else "args_after_dce"]  # the arguments that the program reads
    call_vars = next(call.variables for call in calls if call.function == "__call__")
    leaves = leaves_of((call_vars["args"], call_vars["kwargs"]))
    if len(leaves) == len(given):
        paths = [path for path, _ in leaves]
    else:  # an array passed twice has two names, and which one the program reads is unknown
        n_of, path_of = Counter(id(leaf) for _, leaf in leaves), {id(leaf): path for path, leaf in leaves}
        paths = [path_of.get(id(leaf), "") if n_of[id(leaf)] == 1 else "" for leaf in given]
    return "the step was compiled for arrays placed elsewhere", [
        Difference(_IN_CALL[path[:3]] + path[3:], *finding, tree=1, names=("compiled", "given"))
        for path, leaf, sharding in zip(paths, given, wanted, strict=True)
        if path and is_committed(leaf) and not leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
        for finding in compare_places(LeafType(None, sharding), LeafType(None, leaf.sharding))
    ]


def _explain_invalid(frame_vars: Variables, calls: Calls) -> Answer:
    """Loops, branches, `vmap`, `checkpoint` and `device_put`: the leaves that are not arrays."""
    call = next(call for call in calls if _TAKE_ARRAYS.get(call.function) in call.variables)
    tree, name = call.variables[_TAKE_ARRAYS[call.function]], call.function
    tree = tree.unflatten() if hasattr(tree, "unflatten") else tree
    labels = {"[0]": "the initial carry", "[1]": "xs"} if name == "scan" else {}
    if any(call.function == "fori_loop" for call in calls):
        labels, name = {"[0][1]": "", "[2]": ""}, "fori_loop"  # fori_loop also carries its counters
    if name == "fun_remat":
        if call.variables.get("static_argnums"):  # JAX removed them, which shifts the positions
            return NO_ANSWER
        name = "checkpoint"
    lines = []
    for path, leaf in leaves_of(tree):
        if not is_jit_value(leaf):
            prefix = next((label for label in labels if path.startswith(label)), "")
            place = labels.get(prefix, "") + path.removeprefix(prefix)
            lines.append(f"{place or 'the argument'}: {describe_value(leaf)}")
    return f"{name.removesuffix('_f')} accepts only arrays and numbers", lines


def _explain_deleted(frame_vars: Variables, calls: Calls) -> Answer:
    """`jit` and `device_get`: the arrays that were deleted or donated to another call."""
    frame_vars = next((call.variables for call in calls if call.function in ("cache_miss", "device_get")), {})
    if "args" in frame_vars:
        trees = {f"argument {i}": arg for i, arg in enumerate(frame_vars["args"])} | frame_vars["kwargs"]
    else:
        trees = {"the argument": frame_vars["x"]}
    deleted = [
        (name, path, leaf)
        for name, tree in trees.items()
        for path, leaf in leaves_of(tree)
        if isinstance(leaf, jax.Array) and guarded(leaf.is_deleted, lambda _: False)
    ]
    if not any(path for _, path, _ in deleted):  # such as x + y: JAX's own message has the shape
        return NO_ANSWER
    names = guarded(lambda: names_of(calls[0].error), lambda _: {})  # names in the user's call
    return "arrays that were deleted, or donated to an earlier call", [
        f"{names.get(id(leaf), name + path)}: {describe_value(leaf)}" for name, path, leaf in deleted
    ]


def _explain_differentiated(frame_vars: Variables, calls: Calls) -> Answer:
    """`grad`, `value_and_grad`, `jacfwd` and `jacrev`: the leaves that have no derivative."""
    if frame_vars.get("allow_int"):
        return NO_ANSWER
    are_refs = "Ref-typed" in str(calls[0].error)  # since jax 0.11
    return "grad needs arrays, not references" if are_refs else "grad needs floating-point leaves", [
        f"{f'argument {i}' if len(frame_vars['dyn_args']) > 1 else 'the argument'}{path}: {describe_value(leaf)}"
        for i, tree in enumerate(frame_vars["dyn_args"])
        for path, leaf in leaves_of(tree)
        if (is_ref(leaf) if are_refs else not is_inexact(leaf))
    ]


# The functions of JAX that raise -> the answer. `jax_private.TO_EXPLAIN` lists their places.
ANSWERS: dict[str, Callable[[Variables, Calls], Answer]] = {
    "_check_carry_type": explain_carry,
    "_check_branch_outputs": explain_branches,
    "flatten_axes": explain_prefix,
    "flatten_axis_resources": explain_shardings,
    "vmap_f": explain_vmap,
    "_batch_inner": explain_vmap_result,
    "pjit_check_aval_sharding": explain_divisibility,
    "broadcast_prefix": explain_broadcast,
    "f_wrapped": explain_broadcast,
    "_check_names": explain_out_specs,
    "_get_and_check_device_assignment": explain_devices,
    "_check_returned_jaxtypes": _explain_returned,
    "call": _explain_compiled,
    "check_array_xla_sharding_layout_match": _explain_compiled_shardings,
    "_create_jaxpr": explain_cond_fun,
    "associative_scan": explain_associative_scan,
    "tree_map": _explain_map,
    "tree_map_with_path": _explain_map,
    "_jvp": _explain_jvp,
    "_infer_params": _explain_argument_types,
    "_vjp3_bwd": _explain_pullback,
    "_vjp_pullback_wrapper": _explain_pullback,
    "transposed_fun": _explain_pullback,
    "value_and_grad_f": _explain_differentiated,
    "jacfun": _explain_differentiated,
    "tree_transpose": _explain_transpose,
    "_infer_scan_length": explain_scanned,
    "_flatten_bwd": _explain_custom_vjp,
    "_flatten_jvp": _explain_jvp,
    "typeof": _explain_invalid,
    "shaped_abstractify": _explain_invalid,
    "_check_if_deleted": _explain_deleted,
}
# Functions that flatten the user's trees before they call JAX again.
OUTER_ANSWERS: dict[str, Callable[[Variables, Calls], Answer]] = {"wrapped": explain_wrapper}
