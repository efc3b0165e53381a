"""The private names of JAX that treeviz uses: `PRIVATE` lists them, with what is lost if a release lacks one.

Two functions of `jax._src.api` are replaced while a step is traced, to see its gradients, and two of `jax._src.pjit`
while calls of jitted functions are to be seen; the options of a jitted function are read from it; processes compare
settings through JAX's coordinator. Imported at first use. `treeviz.tree.tested_jax` has the releases it is tried with.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
from jax import tree_util

from treeviz.tree.runtime import Lock, PrivateName, missing_names, why_missing
from treeviz.tree.tested_jax import newer_than_tested, tested_range
from treeviz.tree.text import error_text

# Functions of a module that are replaced for a while, and what they were.

_lock = Lock()  # held for some assignments, never while tracing
_n_replacing: Counter[str] = Counter()  # how many contexts replace a function
_originals: dict[str, Any] = {}  # by name; kept, since another thread may be about to call one


@contextlib.contextmanager
def replaced(module: Any, replacements: Mapping[str, Callable]) -> Iterator[None]:
    """Functions of a module are replaced within this context, for all threads."""
    with _lock:
        for name, replacement in replacements.items():
            if not _n_replacing[name]:
                _originals[name] = getattr(module, name)
                setattr(module, name, replacement)
            _n_replacing[name] += 1
    try:
        yield
    finally:
        with _lock:
            for name in replacements:
                _n_replacing[name] -= 1
                if not _n_replacing[name]:
                    setattr(module, name, _originals[name])


def original_of(name: str) -> Any:
    """What a function that is `replaced` was before."""
    return _originals[name]


_API, _PJIT, _CORE, _PXLA = "jax._src.api", "jax._src.pjit", "jax.extend.core", "jax._src.interpreters.pxla"
EAGER_OPERATIONS, PMAPPED = "jax._src.dispatch", "jax._src.pmap"  # modules of what runs for them outside jax.jit
_RUN, _HELPER = ("_infer_params", "_run_python_pjit"), "_python_pjit_helper"  # of `_PJIT`; the latter before jax 0.9

_NO_HIJAX = ("jax", "jaxlib", "numpy", "ml_dtypes", "builtins")  # whose classes JAX registers in the same way

# Options that are passed on to another `jax.jit`.
OPTIONS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "keep_unused", "inline")
_SHARDINGS = ("shardings_treedef", "shardings_leaves", "layouts_leaves")
OPTION_FIELDS = (*OPTIONS, "compiler_options_kvs", *(f"{side}_{part}" for side in ("in", "out") for part in _SHARDINGS))


def _table(lost: str, *places: str) -> tuple[PrivateName, ...]:
    return tuple(PrivateName(where, lost) for where in places)


TO_SEE_GRADIENTS = _table(
    "the gradients inside a step cannot be seen",
    f"{_API}:value_and_grad.<globals>._vjp or {_API}:value_and_grad.<globals>.vjp",
    f"{_API}:_vjp or {_API}:_vjp3_bwd",
    f"{_API}:value_and_grad.<locals>.value_and_grad_f",
    f"{_API}:jacrev.<locals>.jacfun",
    "jax:make_user_context or jax._src.config:softmax_custom_jvp",
)
TO_READ_OPTIONS = _table(
    "the options of jax.jit cannot be read",
    f"jax:jit()._jit_info or {_PJIT}:PjitInfo",  # the latter is in a closure
    *(f"{_PJIT}:PjitInfo.{field}" for field in OPTION_FIELDS),
)
TO_REWRITE_PROGRAMS = _table(  # in `sow`, `reap` and `instrumented`
    "a traced step cannot be measured",
    "jax.core:Tracer",
    *(f"{_CORE}:{name}" for name in ("ClosedJaxpr", "Jaxpr", "Literal", "Primitive")),
    *(f"{_CORE}:{name}" for name in ("JaxprEqn.ctx", "JaxprEqn.source_info", "Primitive.get_bind_params")),
    *(f"jax.extend.source_info_util:{name}" for name in ("current_name_stack", "user_context")),
    "jax.interpreters.ad:primitive_jvps",
    "jax.interpreters.batching:primitive_batchers",
    "jax.interpreters.mlir:register_lowering",
    *(f"jax:shard_map or jax.experimental.shard_map:{name}" for name in ("register_check", "register_norewrite")),
)
TO_COMPARE_PROCESSES = _table(
    "in a run of several processes, steps run, but are not watched",
    *(f"jax._src.distributed:global_state.{name}" for name in ("client", "process_id", "num_processes")),
)
TO_SEE_CALLS = _table(
    "inspector.watching() sees no calls, inspector.watch() is needed for each step",
    f"{_PJIT}:_make_jit_wrapper or {_PJIT}:_cpp_pjit",
    *(f"{_PJIT}:_cpp_pjit.<globals>.{name} or {_PJIT}:_cpp_pjit.<globals>.{_HELPER}" for name in _RUN),
    "jax._src.config:config_ext",
    "jax._src.core:trace_state_clean",
)
TO_READ_PROGRAMS = _table("which arguments a step reads is not known", f"{_PXLA}:MeshExecutable._kept_var_idx")
TO_KNOW_HIJAX_TYPES = _table(
    "values of hijax types are shown as objects that JAX does not know", "jax._src.core:pytype_aval_mappings"
)
_CONTROL_FLOW, _TREES, _API_UTIL = "jax._src.lax.control_flow", "jax._src.tree_util", "jax._src.api_util"
TO_EXPLAIN = _table(  # in tracebacks: `explainer.explain` knows them by their last names
    "explain_errors says less about the errors that these functions raise",
    f"{_CONTROL_FLOW}.loops:_check_carry_type",
    f"{_CONTROL_FLOW}.conditionals:_check_branch_outputs",
    f"{_API_UTIL}:flatten_axes",
    f"{_API_UTIL}:flatten_axis_resources or {_PJIT}:flatten_axis_resources",
    f"{_API}:vmap.<locals>.vmap_f",
    "jax._src.interpreters.batching:_batch_inner",
    f"{_PJIT}:pjit_check_aval_sharding",
    f"{_TREES}:broadcast_prefix",
    f"{_API_UTIL}:argnums_partial2.<locals>.f_wrapped",
    "jax._src.shard_map:_check_names or jax.experimental.shard_map:_check_names",
    f"{_PXLA}:_get_and_check_device_assignment",
    "jax._src.interpreters.partial_eval:_check_returned_jaxtypes",
    "jax._src.stages:Compiled.call",
    f"{_PXLA}:check_array_xla_sharding_layout_match",
    f"{_CONTROL_FLOW}.loops:while_loop.<locals>._create_jaxpr",
    f"{_CONTROL_FLOW}.loops:associative_scan",
    f"{_TREES}:tree_map",
    f"{_TREES}:tree_map_with_path",
    f"{_API}:_jvp",
    f"{_PJIT}:_infer_params",
    f"{_API}:_vjp3_bwd or {_API}:_vjp_pullback_wrapper",
    f"{_API}:linear_transpose.<locals>.transposed_fun",
    f"{_API}:value_and_grad.<locals>.value_and_grad_f",
    f"{_API}:jacrev.<locals>.jacfun",
    f"{_TREES}:tree_transpose",
    f"{_CONTROL_FLOW}.loops:_infer_scan_length",
    "jax._src.custom_derivatives:_flatten_bwd",
    "jax._src.custom_derivatives:_flatten_jvp",
    "jax._src.core:typeof",
    f"jax._src.core:shaped_abstractify or {_API_UTIL}:shaped_abstractify",
    "jax._src.array:ArrayImpl._check_if_deleted",
    "jax._src.shard_map:_shard_map.<locals>.wrapped or jax.experimental.shard_map:_shard_map.<locals>.wrapped",
)
TO_WATCH = (*TO_SEE_GRADIENTS, *TO_READ_OPTIONS, *TO_REWRITE_PROGRAMS)
PRIVATE = (*TO_WATCH, *TO_SEE_CALLS, *TO_COMPARE_PROCESSES, *TO_READ_PROGRAMS)

# (kind of tree, gradients, what they belong to or None) -> the same gradients; and ("loss", its value) -> the same
See = Callable[..., Any]


def why_not() -> str:
    """Empty if steps can be watched with this JAX; else what it lacks, and what is lost."""
    return why_missing(missing_names(TO_WATCH))


def why_no_calls() -> str:
    """Empty if calls of jitted functions can be seen and watched; else what this JAX lacks, and what is lost."""
    return why_missing(missing_names((*TO_WATCH, *TO_SEE_CALLS)))


_here = threading.local()  # .see: of the thread that traces; .is_nested: within a `value_and_grad` or `jacrev`; .take


def hijax_type_function(cls: type) -> Callable[[Any], Any] | None:
    """What returns the hijax type of an object of this class; None if none is registered for it or a base of it."""
    # `jax.typeof` would run the `repr` of what it does not know.
    from jax._src import core

    known = getattr(core, "pytype_aval_mappings", {})
    base = next((base for base in cls.__mro__ if base in known), None)
    return None if base is None or base.__module__.partition(".")[0] in _NO_HIJAX else known[base]


@contextlib.contextmanager
def seeing_gradients(see: See, why: str = "treeviz") -> Iterator[None]:
    """In this context `see` gets and replaces this thread's gradients; functions are traced anew, for each `why`."""
    from jax._src import api

    before = getattr(_here, "see", None)
    # Up to jax 0.6 or so, `value_and_grad` and `vjp` both call `_vjp`. Later `value_and_grad` calls `vjp`, and the
    # pullback of a direct `jax.vjp` ends in `_vjp3_bwd`.
    names = ("_vjp",) if hasattr(api, "_vjp") else ("vjp", "_vjp3_bwd")
    replacements = dict(zip(names, (functools.partial(_seen_vjp, names[0]), _seen_backward), strict=False))
    with replaced(api, replacements):
        _here.see = see
        try:
            with traced_anew(why):
                yield
        finally:
            _here.see = before


def _seen_vjp(name, fun, *primals, **options):
    """Replaces `_vjp` or `vjp` of `jax._src.api`."""
    result = original_of(name)(fun, *primals, **options)
    see: Any = now_seeing()
    frame = sys._getframe(1)
    caller = frame.f_code.co_name
    if see is None or caller not in ("value_and_grad_f", "vjp", "jacfun"):
        return result
    value, pullback, *aux = result
    if caller == "value_and_grad_f":
        value = see("loss", value)
        function = getattr(frame.f_locals.get("fun"), "__name__", "")  # here, `fun` is a wrapper of it
        name = f"grads ({function})" if str(function).isidentifier() else "grads"
    if caller == "vjp":  # a pytree, since it may go through other transformations
        return (value, tree_util.Partial(_seen_pullback, pullback), *aux)

    def seen(cotangent):  # called at once
        before = getattr(_here, "is_nested", False)
        _here.is_nested = True
        try:
            gradients = pullback(cotangent)
        finally:
            _here.is_nested = before
        if caller == "jacfun":  # rows of a Jacobian are not gradients
            return gradients
        return _as_one_tree(lambda g: see("grads", g, primals[0] if len(primals) == 1 else primals, name), gradients)

    return (value, seen, *aux)


def _seen_pullback(pullback, *args, **options):
    gradients = pullback(*args, **options)
    see = now_seeing()
    return gradients if see is None else _as_one_tree(lambda g: see("cotangents", g, None), gradients)


def _seen_backward(*args, **options):
    """Replaces `jax._src.api._vjp3_bwd`."""
    backward, is_nested = original_of("_vjp3_bwd"), getattr(_here, "is_nested", False)
    return backward(*args, **options) if is_nested else _seen_pullback(backward, *args, **options)


def _as_one_tree(see, gradients):
    """The gradient of a single argument is a tree of its own, not a tuple of one."""
    if type(gradients) is tuple and len(gradients) == 1:
        return (see(gradients[0]),)
    return see(gradients)


def now_seeing() -> See | None:
    """The `see` of this thread; None outside `seeing_gradients`."""
    return getattr(_here, "see", None)


class _UniqueBool:
    """A bool-like value that is unique as a JAX cache key, so that tracing is repeated."""

    def __init__(self, value: bool) -> None:
        self.value = value

    def __bool__(self) -> bool:
        return self.value


_unique_bool = functools.cache(lambda value, why: _UniqueBool(value))


@functools.cache
def _user_context() -> Any:
    return jax.make_user_context(None) if hasattr(jax, "make_user_context") else None


def get_ready() -> None:
    """Make what makes jax 0.10.2 trace every jitted function once more: before a step is watched, not while one is."""
    _user_context()
    _key()


def traced_anew(why: str = "treeviz"):
    """A context in which jitted functions that were traced before are traced again, and cached apart for each `why`."""
    context = _user_context()
    if context is not None:
        return context(why)
    from jax._src import config

    flag = config.softmax_custom_jvp  # any flag that is part of the cache key and is only tested for truth
    return flag(_unique_bool(bool(flag.value), why))  # type: ignore[arg-type]


def transposes() -> list[dict[Any, Callable]]:
    """JAX's tables of the rules by which it computes backward passes, by primitive."""
    from jax._src.interpreters import ad

    # The rule of a custom_vjp is in the first until jax 0.10.2, and later in the second. Without them a NaN that begins
    # in a backward rule is placed where the function is used.
    return [getattr(ad, name, {}) for name in ("primitive_transposes", "fancy_transposes")]


def jit_info(step: Any) -> Any:
    """JAX's record of the options with which it made a jitted function."""
    info = getattr(step, "_jit_info", None)
    if info is None:  # jax 0.4.36 keeps it in a closure
        miss = getattr(step, "_cache_miss", None)
        miss = getattr(miss, "__wrapped__", miss)
        for cell in getattr(miss, "__closure__", None) or ():
            if type(cell.cell_contents).__name__ == "PjitInfo":
                return cell.cell_contents
    return info


# (function, JAX's record of its options, args, kwargs) -> (the result of the call,), or None: JAX calls the function
Take = Callable[[Callable, Any, tuple, dict[str, Any]], tuple | None]


@contextlib.contextmanager
def taking_calls(take: Take, mark: Any) -> Iterator[None]:
    """Within this context, `take` gets calls of jitted functions by this thread, but for those within a trace.

    JAX's C++ finds a compiled function by a key, part of which is the configuration of the thread. With `mark` in it,
    Python is asked once for each function and signature, though nothing is traced or compiled again, and at each call
    whose result `take` has given.
    """
    from jax._src import pjit

    of_run = dict(zip(_RUN, (_seen_params, _seen_run), strict=True))
    replacements = {_HELPER: _seen_helper} if hasattr(pjit, _HELPER) else of_run
    _result_of_nothing()
    with replaced(pjit, replacements), _taking(take, mark):
        yield


def not_taking_calls() -> contextlib.AbstractContextManager:
    """A context in which this thread calls as outside of `taking_calls`."""
    block = getattr(_here, "take", None)
    return _taking(None, block[1]) if block else contextlib.nullcontext()


@contextlib.contextmanager
def _taking(take: Take | None, mark: Any) -> Iterator[None]:
    before, outside = getattr(_here, "take", None), _key().swap_local(mark)
    _here.take = take and (take, outside)
    try:
        yield
    finally:
        _here.take = before
        _key().set_local(outside)


def jitted_again(function: Callable, info: Any) -> Any:
    """A jitted function that shares what JAX has traced and compiled for the one that was called."""
    from jax._src import pjit

    make = getattr(pjit, "_make_jit_wrapper", None) or pjit._cpp_pjit  # the former before jax 0.6
    return make(function, info)


@functools.cache
def _key() -> Any:
    """A part of the key by which JAX finds compiled functions; None if this release has no such thing."""
    for name in (["treeviz"], []):  # since jax 0.8 or so it has one
        with contextlib.suppress(ImportError, AttributeError, TypeError):
            from jax._src import config

            return config.config_ext.Config(*name, None, include_in_jit_key=True)
    return None


@functools.cache
def _result_of_nothing() -> tuple:
    """What the replaced function returns for one without results, but for the program: so JAX asks at the next call."""
    from jax._src import pjit

    nothing: Any = jax.jit(lambda: None)
    nothing, info = nothing.__wrapped__, jit_info(nothing)
    if hasattr(pjit, _HELPER):
        result = getattr(pjit, _HELPER)(nothing, info)
    else:
        result = pjit._run_python_pjit(*pjit._infer_params(nothing, info, (), {}), nothing, (), {})
    (at,) = (i for i, x in enumerate(result) if type(x).__name__ == "MeshExecutable")
    return (*result[:at], None, *result[at + 1 :])


class _Taken(tuple):
    """The result, in the place of the parameters of a program."""


def _seen_params(function, info, args, kwargs):
    """Replaces `_infer_params`, which precedes `_run_python_pjit` in a call."""
    if sys._getframe(1).f_code.co_name == "cache_miss" and (taken := _taken(function, info, args, kwargs)):
        return _Taken(taken), []
    return original_of("_infer_params")(function, info, args, kwargs)


def _seen_run(params, *rest):
    return tuple(params) if type(params) is _Taken else original_of("_run_python_pjit")(params, *rest)


def _seen_helper(function, info, *args, **kwargs):
    return _taken(function, info, args, kwargs) or original_of(_HELPER)(function, info, *args, **kwargs)


def _taken(function, info, args, kwargs) -> tuple | None:
    from jax._src import core

    block = getattr(_here, "take", None)
    if block is None or not core.trace_state_clean():
        return None
    with not_taking_calls():
        taken = block[0](function, info, args, kwargs)
    return None if taken is None else (*taken, *_result_of_nothing()[1:])


def current_trace() -> Any:
    """What traces the program that is traced now; None if this release has it elsewhere."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import core

        return core.trace_ctx.trace
    return None


def distributed_state() -> Any:
    """JAX's state of a run of several processes; None in any other, or if this release has it elsewhere."""
    if missing_names(TO_COMPARE_PROCESSES):
        return None
    from jax._src import distributed

    state = distributed.global_state
    return None if state.client is None or (state.num_processes or 1) == 1 else state


def kept_arguments(compiled: Any) -> list[int]:
    """The positions of the leaves that a compiled program reads."""
    return sorted(compiled._executable._kept_var_idx)


# What treeviz cannot read of a step, as where a new JAX has moved something: it costs its own numbers, and says so.

T = TypeVar("T")


class NotMeasured(Exception):
    """A step is not measured, for a reason that its message tells the user."""


def tested_with() -> str:
    """The jax that is here, and those that treeviz was tested with."""
    newer = ", which is newer" * newer_than_tested(jax.__version__)
    return f"jax {jax.__version__}{newer}; treeviz was tested with {tested_range()}"


def why_not_measured(error: BaseException) -> str:
    """What an error says: where treeviz itself is wrong, or JAX has moved what it reads, also how to report that."""
    if isinstance(error, NotMeasured):
        return str(error)
    if isinstance(error, jax.errors.JaxRuntimeError):  # as without memory
        return error_text(error)
    return f"{error_text(error)} ({tested_with()}). Please report this with what `treeviz doctor` prints"


class Unread:
    """Notes on what treeviz cannot read of one step."""

    def __init__(self) -> None:
        self._lost: dict[str, list[str]] = {}  # by the reason

    def note(self, lost: str, error: Exception) -> None:
        of_reason = self._lost.setdefault(why_not_measured(error), [])
        of_reason += [] if lost in of_reason else [lost]

    def attempt(self, lost: str, default: T, function: Callable[..., T], *args: Any) -> T:
        """What a function of ours returns; where it raises, `default` and a note on what is lost."""
        try:
            return function(*args)
        except Exception as error:  # never of the user's code, which has been traced by now
            self.note(lost, error)
            return default

    @property
    def notes(self) -> list[str]:
        return [f"{'; '.join(lost)}: {why}." for why, lost in self._lost.items()]
