"""Add a note to an error from JAX that names the leaves at fault; the error itself stays as it is."""

from __future__ import annotations

import ast
import inspect
import operator
import re
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from itertools import chain
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jax import tree_util

from treeviz.api import check
from treeviz.explainer import frames, libraries
from treeviz.explainer.answers import ANSWERS, OUTER_ANSWERS
from treeviz.explainer.frames import (
    NO_ANSWER,
    Answer,
    calls_in_jax,
    describe_value,
    expression_values,
    failed_expression,
    frames_of,
    is_of_jax,
    is_of_python,
    value_of,
    without_hidden,
)
from treeviz.tree.describers import load_libraries, static_of
from treeviz.tree.keys import MISSING, keystr, stored_attribute
from treeviz.tree.level import one_level
from treeviz.tree.opaque import contents
from treeviz.tree.runtime import Lock, is_installed
from treeviz.tree.text import class_attribute, class_name, guarded, has_base, is_any, printable_lines
from treeviz.tree.walk import scan
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
    """Make JAX keep its frames in tracebacks, since they hold the trees, until `restore_filtering` is called as often.

    Does nothing if this version of JAX lacks the setting.
    """
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
    """The static arguments of a jitted function, read from its pickled state.

    `jax_private` has them too, but importing it makes JAX trace each function again.
    """
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
    """The value of an argument: a variable or a literal."""
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
