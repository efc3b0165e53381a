"""The private names of JAX that treeviz uses: `PRIVATE` lists them, with what is lost if a release lacks one.

Two functions of `jax._src.api` are replaced while a step is traced, to see its gradients; the options of a jitted
function are read from it; the processes of a distributed run compare their settings through JAX's coordinator.
Private modules are imported at first use. Tried with jax 0.4.36, 0.6.2 and 0.10.2.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax import tree_util

from treeviz.tree.forks import Lock
from treeviz.tree.private_names import PrivateName, missing_names, warn_of_missing, why_missing

_API, _PJIT, _CORE = "jax._src.api", "jax._src.pjit", "jax.extend.core"

# Options that are passed on to another `jax.jit`.
_OPTIONS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "keep_unused", "inline")
_SHARDINGS = ("shardings_treedef", "shardings_leaves", "layouts_leaves")
_OPTION_FIELDS = (*_OPTIONS, "compiler_options_kvs", *(f"{of}_{part}" for of in ("in", "out") for part in _SHARDINGS))


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
    *(f"{_PJIT}:PjitInfo.{field}" for field in _OPTION_FIELDS),
)
TO_REWRITE_PROGRAMS = _table(  # in `sow`, `reap` and `twin`
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
TO_WATCH = (*TO_SEE_GRADIENTS, *TO_READ_OPTIONS, *TO_REWRITE_PROGRAMS)
PRIVATE = (*TO_WATCH, *TO_COMPARE_PROCESSES)

# (kind of tree, gradients, what they belong to or None) -> the same gradients; and ("loss", its value) -> the same
See = Callable[..., Any]


class JitOptions(NamedTuple):
    """The options with which `jax.jit` was called."""

    keywords: dict[str, Any]  # for another `jax.jit`, without those of the outputs
    out_shardings: Any  # a tree prefix, or None if there was none
    donates: bool


def why_not() -> str:
    """Empty if steps can be watched with this JAX; else what it lacks, and what is lost."""
    return why_missing(missing_names(TO_WATCH))


_here = threading.local()  # .see: of the thread that traces; .is_nested: within a `value_and_grad` or `jacrev`
_lock = Lock()  # held for two assignments, never while tracing
_n_seeing = 0
_originals: dict[str, Any] = {}  # of `jax._src.api`, by name, while some thread sees gradients


@contextlib.contextmanager
def seeing_gradients(see: See) -> Iterator[None]:
    """Within this context, `see` gets every gradient that this thread makes, and returns its replacement.

    Functions that were compiled before are traced again.
    """
    global _n_seeing
    from jax._src import api

    before = getattr(_here, "see", None)
    with _lock:
        if _n_seeing == 0:
            for name, replacement in _replacements(api).items():
                _originals[name] = getattr(api, name)
                setattr(api, name, replacement)
        _n_seeing += 1
    _here.see = see
    try:
        with traced_anew("treeviz"):
            yield
    finally:
        _here.see = before
        with _lock:
            _n_seeing -= 1
            if _n_seeing == 0:
                for name, original in _originals.items():
                    setattr(api, name, original)
                _originals.clear()


def _replacements(api: Any) -> dict[str, Callable]:
    """The replacements for functions of `jax._src.api`, by name."""
    if hasattr(api, "_vjp"):  # up to jax 0.6 or so, `value_and_grad` and `vjp` both call it
        return {"_vjp": functools.partial(_seen_vjp, "_vjp")}
    # Later `value_and_grad` calls `vjp`, and the pullback of a direct `jax.vjp` ends in `_vjp3_bwd`.
    return {"vjp": functools.partial(_seen_vjp, "vjp"), "_vjp3_bwd": _seen_backward}


def _seen_vjp(name, fun, *primals, **options):
    """Replaces `_vjp` or `vjp` of `jax._src.api`."""
    result = _originals[name](fun, *primals, **options)
    see = now_seeing()
    caller = sys._getframe(1).f_code.co_name
    if see is None or caller not in ("value_and_grad_f", "vjp", "jacfun"):
        return result
    value, pullback, *aux = result
    if caller == "value_and_grad_f":
        value = see("loss", value)
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
        return _as_one_tree(lambda g: see("grads", g, primals[0] if len(primals) == 1 else primals), gradients)

    return (value, seen, *aux)


def _seen_pullback(pullback, *cotangents):
    gradients = pullback(*cotangents)
    see = now_seeing()
    return gradients if see is None else _as_one_tree(lambda g: see("cotangents", g, None), gradients)


def _seen_backward(*args, **options):
    """Replaces `jax._src.api._vjp3_bwd`."""
    gradients = _originals["_vjp3_bwd"](*args, **options)
    see = None if getattr(_here, "is_nested", False) else now_seeing()
    return gradients if see is None else _as_one_tree(lambda g: see("cotangents", g, None), gradients)


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


# A new user context makes jax 0.10.2 trace every jitted function once more, so it is made before a step is watched, and
# not while one is traced.
_user_context = jax.make_user_context(None) if hasattr(jax, "make_user_context") else None


def traced_anew(why: str):
    """A context in which jitted functions that were traced before are traced again, and cached apart for each `why`."""
    if _user_context is not None:
        return _user_context(why)
    from jax._src import config

    flag = config.softmax_custom_jvp  # any flag that is part of the cache key and is only tested for truth
    return flag(_unique_bool(bool(flag.value), why))  # type: ignore[arg-type]


def is_jitted(step: Any) -> bool:
    """Whether `jax.jit` returned this very object, not something around it."""
    return type(step) is _probe().type and _jit_info(step) is not None


def jit_options(step: Any) -> JitOptions:
    """The options with which `jax.jit` made a jitted function."""
    info = _jit_info(step)
    keywords: dict[str, Any] = {name: getattr(info, name) for name in _OPTIONS if getattr(info, name)}
    # These two options of `jax.jit` are deprecated, and a later release lacks the attributes.
    keywords.update((name, value) for name in ("device", "backend") if (value := getattr(info, name, None)) is not None)
    if info.compiler_options_kvs:
        keywords["compiler_options"] = dict(info.compiler_options_kvs)
    in_shardings = _shardings(info.in_shardings_treedef, info.in_shardings_leaves, info.in_layouts_leaves)
    if in_shardings is not None:
        keywords["in_shardings"] = in_shardings
    out_shardings = _shardings(info.out_shardings_treedef, info.out_shardings_leaves, info.out_layouts_leaves)
    return JitOptions(keywords, out_shardings, bool(info.donate_argnums or info.donate_argnames))


def _jit_info(step: Any) -> Any:
    info = getattr(step, "_jit_info", None)
    if info is None:  # jax 0.4.36 keeps it in a closure
        miss = getattr(step, "_cache_miss", None)
        miss = getattr(miss, "__wrapped__", miss)
        for cell in getattr(miss, "__closure__", None) or ():
            if type(cell.cell_contents).__name__ == "PjitInfo":
                return cell.cell_contents
    return info


class _Probe(NamedTuple):
    """A jitted function without options."""

    type: type
    unspecified: Any  # the marker of a sharding that was not given


@functools.cache
def _probe() -> _Probe:
    jitted = jax.jit(lambda: None)
    info = _jit_info(jitted)
    return _Probe(type(jitted), info and info.in_shardings_leaves[0])


def _shardings(treedef, shardings, layouts):
    """The shardings of all arguments or results with their layouts; None if neither was given."""
    if all(_is_unspecified(s) for s in shardings) and all(x is None for x in layouts):
        return None
    leaves = [
        _with_layout(layout, None if _is_unspecified(s) else s) for s, layout in zip(shardings, layouts, strict=True)
    ]
    return tree_util.tree_unflatten(treedef, leaves)


def _is_unspecified(sharding: Any) -> bool:
    return sharding is _probe().unspecified


def _with_layout(layout, sharding):
    if layout is None:
        return sharding
    from jax.experimental import layout as layouts

    both = getattr(layouts, "Format", None) or layouts.Layout  # `Layout` until jax 0.6
    return both(layout, sharding)


def announce(step: str) -> None:
    """Tell the other processes of a distributed run that this one watches a step of this name."""
    state = _distributed_state()
    if state is not None:
        with contextlib.suppress(Exception):  # such as that it was told before
            state.client.key_value_set(f"treeviz/{step}/{state.process_id}", "watched")


_n_asked: Counter[str] = Counter()  # by the name of a step


def agreed(step: str, answer: str, timeout_s: float, *, join_s: float) -> str:
    """Empty if all processes of a distributed run give the same answer; else why they do not, the same in each.

    Uses the coordinator, not the devices: if a process never asks, the others give up and do not hang.

    Args:
      timeout_s: How long to wait for the answer of a process that has announced this step.
      join_s: How long to wait until it announces it.
    """
    missing = why_missing(missing_names(TO_COMPARE_PROCESSES))
    if missing and jax.process_count() > 1:
        return missing
    if missing:
        warn_of_missing(TO_COMPARE_PROCESSES, stacklevel=5)
        return ""
    state = _distributed_state()
    if state is None:
        return ""
    announce(step)
    question, me = f"treeviz/{step}/asked {_n_asked[step]}", state.process_id
    _n_asked[step] += 1
    why = "agreed"
    try:
        state.client.key_value_set(f"{question}/{me}", answer)
        for process in range(state.num_processes):
            why = f"process {process} did not watch this step within {join_s:g} s of its first call in process {me}"
            state.client.blocking_key_value_get(f"treeviz/{step}/{process}", int(join_s * 1000))
            why = f"process {process} did not call this step within {timeout_s:g} s of its first call in process {me}"
            theirs = state.client.blocking_key_value_get(f"{question}/{process}", int(timeout_s * 1000))
            if theirs != answer:
                why = f"process {process} watches it with {theirs}, process {me} with {answer}"
                break
            why = "agreed"
    except Exception as error:
        why = f"{why} ({type(error).__name__})"
    try:  # the first decision is that of all, so that none runs what another has given up
        state.client.key_value_set(f"{question}/decision", why)
    except Exception:
        try:
            why = state.client.blocking_key_value_get(f"{question}/decision", int(join_s * 1000))
        except Exception as error:
            return f"the processes cannot be compared ({type(error).__name__}: {error})"
    return "" if why == "agreed" else why


def _distributed_state() -> Any:
    """JAX's state of a run of several processes; None in any other, or if this release has it elsewhere."""
    if missing_names(TO_COMPARE_PROCESSES):
        return None
    from jax._src import distributed

    state = distributed.global_state
    return None if state.client is None or (state.num_processes or 1) == 1 else state
