"""Functions as leaves and as pytrees: their name, file and line, and what they captured."""

from __future__ import annotations

import functools
import os
import types
from pathlib import PurePath
from typing import Any

import jax

from treeviz.tree.numbers import bytes_text
from treeviz.tree.safe_repr import (
    array_bytes,
    array_text,
    function_name,
    guarded,
    has_base,
    is_jaxpr,
    unboxed,
    value_text,
    visible,
)

_MAX_WRAPPERS = 16


def describe_function(function: Any) -> str:
    """ "relu  jax/_src/nn/functions.py:93", "grad of loss  demo/train.py:12".

    Without file and line for a function not written in Python.
    """
    jaxpr = _jaxpr(function)
    if jaxpr is not None:
        traced = guarded(lambda: _traced(jaxpr), lambda _: "")
        if traced:
            return traced
    made, inner = unwrapped(unboxed(function))
    name, code = made + function_name(inner), code_of(inner)
    return name if code is None else f"{name}  {_short_path(code.co_filename)}:{code.co_firstlineno}"


def _jaxpr(function: Any) -> Any:
    """The program that a function of JAX's making runs, such as the result of `jax.linearize`; None for others."""
    function = unboxed(function)
    if not has_base(type(function), functools.partial):
        return None
    arguments = functools.partial.args.__get__(function)
    return next((each for each in arguments[:4] if is_jaxpr(type(each))), None)


def _traced(jaxpr: Any) -> str:
    """ "linearize of loss  demo/train.py:12"; "" if this jax does not tell."""
    info = jaxpr.debug_info
    name, _, place = info.func_src_info.partition(" at ")
    return f"{info.traced_for} of {visible(name, 80)}  {_short_path(place)}" if place else ""


def _short_path(path: str) -> str:
    return visible("/".join(PurePath(path).parts[-2:]), 80)


def captured(function: Any) -> tuple[tuple[str, str], ...]:
    """(name, text) of each captured value; "float32[3] (12 B)" of an array."""
    jaxpr = _jaxpr(function)
    if jaxpr is not None:
        return (("jaxpr", value_text(jaxpr)),)
    return tuple((visible(name), _captured_text(value)) for name, value in captured_values(function))


def _captured_text(value: Any) -> str:
    array = array_text(value)
    return value_text(value) if array is None else f"{array} ({bytes_text(array_bytes(value))})"


def captured_values(function: Any) -> list[tuple[str, Any]]:
    """(name, value) of closure variables, of a partial's arguments, of a method's self."""
    found: list[tuple[str, Any]] = []
    for _ in range(8):
        function = unboxed(function)
        if type(function) is types.MethodType:
            found.append(("self", function.__self__))
            function = function.__func__
        if has_base(type(function), functools.partial):
            found += [(f"argument {i}", value) for i, value in enumerate(functools.partial.args.__get__(function))]
            found += list(functools.partial.keywords.__get__(function).items())
            function = unboxed(functools.partial.func.__get__(function))
        code, cells = code_of(function, unwrap=False), getattr(function, "__closure__", None) or ()
        inner = guarded(lambda function=function: getattr(function, "__wrapped__", None), lambda _: None)
        if code is not None and (inner is None or not is_code_of_jax(code)):
            pairs = zip(code.co_freevars, map(_cell, cells), strict=False)
            found += [(name, value) for name, value in pairs if inner is None or value is not inner]
        if inner is None:
            break
        function = inner
    return found[:32]


def _cell(cell: types.CellType) -> Any:
    return guarded(lambda: cell.cell_contents, lambda _: "(not set yet)")


def code_of(function: Any, unwrap: bool = True) -> types.CodeType | None:
    """The code object of a Python function, through partials and wrappers; None for others."""
    for _ in range(16):
        function = unboxed(function)
        if has_base(type(function), functools.partial):
            function = functools.partial.func.__get__(function)
            continue
        inner = unwrapped(function)[1] if unwrap else function
        if inner is function:
            break
        function = inner
    code = guarded(lambda: getattr(function, "__code__", None), lambda _: None)
    return code if type(code) is types.CodeType else None


def unwrapped(function: Any) -> tuple[str, Any]:
    """("grad of vmap of ", f) for `jax.grad(jax.vmap(f))`: JAX's transformations, and the innermost function."""
    names = ""
    for _ in range(_MAX_WRAPPERS):
        inner = guarded(lambda function=function: getattr(function, "__wrapped__", None), lambda _: None)
        if inner is None:
            break
        name = guarded(lambda function=function: _transformation(function), lambda _: "")
        names += f"{name} of " if name else ""
        function = inner
    return names, function


def _transformation(wrapper: Any) -> str:
    """The public function of JAX that made a wrapper; "" for wrappers of others."""
    code = wrapper.__code__
    if code.co_qualname.startswith("api_boundary."):  # around every function that JAX returns
        cells = dict(zip(code.co_freevars, wrapper.__closure__, strict=True))
        code = cells["fun"].cell_contents.__code__
    name, _, is_local = code.co_qualname.lstrip("_").partition(".<locals>.")
    is_known = is_local and is_code_of_jax(code) and (name in vars(jax) or name in vars(jax.numpy))
    return name if is_known else ""


def is_code_of_jax(code: types.CodeType) -> bool:
    return code.co_filename.startswith(os.path.dirname(jax.__file__) + os.sep)
