"""All that touches the inside of JAX: seeing gradients while a step is traced, and what a jitted function was told.

Tried with jax 0.4.36, 0.6.2 and 0.10.2. `why_not()` says in words if a release has moved what is used here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax import tree_util
from jax._src import api
from jax._src import config as jax_config

# (kind of `Mark`, gradients, what they belong to or None) -> the same gradients
See = Callable[..., Any]


class JitOptions(NamedTuple):
    """What `jax.jit` was told."""

    keywords: dict[str, Any]  # for another `jax.jit`, without those of the outputs
    out_shardings: Any  # a tree prefix, or None where nothing was said
    donates: bool


def why_not() -> str:
    """Empty if gradients can be seen with this JAX; else what is missing."""
    names = _names_looked_up(api.value_and_grad)
    if _VJP not in names:
        return f"jax.value_and_grad of jax {jax.__version__} does not look up jax._src.api.{_VJP}"
    if _BACKWARD and not callable(getattr(api, _BACKWARD, None)):
        return f"jax {jax.__version__} has no jax._src.api.{_BACKWARD}"
    return ""


def _names_looked_up(function: Any) -> set[str]:
    """The global names in a function's code and in the functions that it defines."""
    codes, names = [getattr(function, "__wrapped__", function).__code__], set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if hasattr(c, "co_names")]
    return names


# `value_and_grad` looks this up when it is called; up to jax 0.6 or so, `jax.vjp` does too.
_VJP = "_vjp" if hasattr(api, "_vjp") else "vjp"
# Later, a direct `jax.vjp` is seen by the function that its pullback ends in.
_BACKWARD = "" if _VJP == "_vjp" else "_vjp3_bwd"

_here = threading.local()  # .see: what the thread that traces does with gradients; .quiet: not with those of `jax.vjp`
_lock = threading.RLock()  # held for the time of two assignments, never while tracing
_n_seeing = 0
_originals: dict[str, Any] = {}


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


@contextlib.contextmanager
def seeing_gradients(see: See) -> Iterator[None]:
    """While this is entered, `see` gets every gradient that this thread makes, and gives what is used for it.

    Whatever was compiled before is traced again.
    """
    global _n_seeing
    before = getattr(_here, "see", None)
    with _lock:
        if _n_seeing == 0:
            _originals[_VJP] = getattr(api, _VJP)
            setattr(api, _VJP, _seen_vjp)
            if _BACKWARD:
                _originals[_BACKWARD] = getattr(api, _BACKWARD)
                setattr(api, _BACKWARD, _seen_backward)
        _n_seeing += 1
    _here.see = see
    try:
        with _traced_anew():
            yield
    finally:
        _here.see = before
        with _lock:
            _n_seeing -= 1
            if _n_seeing == 0:
                for name, original in _originals.items():
                    setattr(api, name, original)


def _seen_vjp(fun, *primals, **options):
    """In the place of `jax._src.api.vjp`."""
    result = _originals[_VJP](fun, *primals, **options)
    see = getattr(_here, "see", None)
    caller = sys._getframe(1).f_code.co_name
    if see is None or caller not in ("value_and_grad_f", "vjp", "jacfun"):
        return result
    value, pullback, *aux = result
    if caller == "vjp":  # a pytree, that may go through other transformations
        return (value, tree_util.Partial(_seen_pullback, pullback), *aux)

    def seen(cotangent):  # called at once
        before = getattr(_here, "quiet", False)
        _here.quiet = True
        try:
            gradients = pullback(cotangent)
        finally:
            _here.quiet = before
        if caller == "jacfun":  # rows of a Jacobian are no gradients
            return gradients
        return _as_one(lambda g: see("grads", g, primals[0] if len(primals) == 1 else primals), gradients)

    return (value, seen, *aux)


def _seen_pullback(pullback, *cotangents):
    gradients = pullback(*cotangents)
    see = getattr(_here, "see", None)
    return gradients if see is None else _as_one(lambda g: see("cotangents", g, None), gradients)


def _seen_backward(*args, **options):
    """In the place of `jax._src.api._vjp3_bwd`."""
    gradients = _originals[_BACKWARD](*args, **options)
    see = None if getattr(_here, "quiet", False) else getattr(_here, "see", None)
    return gradients if see is None else _as_one(lambda g: see("cotangents", g, None), gradients)


def _as_one(see, gradients):
    """The gradient of one argument is a tree of its own."""
    if type(gradients) is tuple and len(gradients) == 1:
        seen = see(gradients[0])
        return (seen,)
    return see(gradients)


def now_seeing() -> See | None:
    """What this thread does with gradients now; None outside `seeing_gradients`."""
    return getattr(_here, "see", None)


class _Truth:
    """As true as a flag, and equal to nothing else: in the key of JAX's caches, a key of its own."""

    def __init__(self, value: bool) -> None:
        self.value = value

    def __bool__(self) -> bool:
        return self.value


_context = jax.make_user_context(None) if hasattr(jax, "make_user_context") else None
_truths = {True: _Truth(True), False: _Truth(False)}


def _traced_anew():
    """A context in which jitted functions that were traced before are traced again, apart from the others."""
    if _context is not None:
        return _context("treeviz")
    flag = jax_config.softmax_custom_jvp  # any flag that is a part of the key and is asked only for its truth
    return flag(_truths[bool(flag.value)])  # type: ignore[arg-type]


def is_jitted(step: Any) -> bool:
    """Whether this came from `jax.jit`, and from nothing around it."""
    return type(step).__name__ in ("PjitFunction", "CompiledFunction") and _jit_info(step) is not None


def jit_options(step: Any) -> JitOptions:
    """What `jax.jit` was told about a jitted function."""
    info = _jit_info(step)
    keywords: dict[str, Any] = {
        name: getattr(info, name)
        for name in ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "keep_unused", "inline")
        if getattr(info, name)
    }
    keywords.update((name, getattr(info, name)) for name in ("device", "backend") if getattr(info, name) is not None)
    if info.compiler_options_kvs:
        keywords["compiler_options"] = dict(info.compiler_options_kvs)
    in_shardings = _told(info.in_shardings_treedef, info.in_shardings_leaves, info.in_layouts_leaves)
    if in_shardings is not None:
        keywords["in_shardings"] = in_shardings
    out_shardings = _told(info.out_shardings_treedef, info.out_shardings_leaves, info.out_layouts_leaves)
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


def _told(treedef, shardings, layouts):
    if all(_is_unspecified(s) for s in shardings) and all(x is None for x in layouts):
        return None
    leaves = [
        _with_layout(layout, None if _is_unspecified(s) else s) for s, layout in zip(shardings, layouts, strict=True)
    ]
    return tree_util.tree_unflatten(treedef, leaves)


def _with_layout(layout, sharding):
    if layout is None:
        return sharding
    from jax.experimental import layout as layouts

    both = getattr(layouts, "Format", None) or layouts.Layout  # `Layout` until jax 0.6
    return both(layout, sharding)


def _is_unspecified(sharding: Any) -> bool:
    return type(sharding).__name__ == "UnspecifiedValue"


def agreed(question: str, answer: str, timeout_s: float) -> str:
    """Empty if all processes of a distributed run give the same answer; else what is wrong, after `timeout_s` at most.

    Goes over the coordinator, not over the devices: a process that never asks makes the others wait, not hang.
    """
    from jax._src import distributed

    state = distributed.global_state
    client = state.client
    if client is None or (state.num_processes or 1) == 1:
        return ""
    key = f"treeviz/{question}/"
    client.key_value_set(f"{key}{state.process_id}", answer)
    for process in range(state.num_processes):
        try:
            theirs = client.blocking_key_value_get(f"{key}{process}", int(timeout_s * 1000))
        except Exception:
            return f"process {process} does not watch this step (it did not answer within {timeout_s:g} s)"
        if theirs != answer:
            return f"process {process} watches it with {theirs}, process {state.process_id} with {answer}"
    return ""
