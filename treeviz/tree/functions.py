"""Functions as leaves and as pytrees: their name, file and line, and what they captured."""

from __future__ import annotations

import functools
import types
from pathlib import PurePath
from typing import Any

import numpy as np

from treeviz.tree.quote import class_name, function_name, guarded, has_base, module_name, mro, value_text, visible

_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    functools.partial,
    np.ufunc,
)
_JAX_WRAPPERS = ("PjitFunction", "custom_jvp", "custom_vjp", "ufunc", "PmapFunction")


def is_function(cls: type) -> bool:
    """Functions, methods, partials, and what JAX makes of them: `jax.jit(f)`, `jax.custom_jvp(f)`."""
    return has_base(cls, *_FUNCTIONS) or any(
        class_name(base) in _JAX_WRAPPERS and "jax" in module_name(base) for base in mro(cls)
    )


def describe_function(function: Any) -> str:
    """ "relu  jax/_src/nn/functions.py:93", without the line if it was not written in Python."""
    code = code_of(function)
    if code is None:
        return function_name(function)
    path = "/".join(PurePath(code.co_filename).parts[-2:])
    return f"{function_name(function)}  {visible(path, 80)}:{code.co_firstlineno}"


def captured(function: Any) -> tuple[tuple[str, str], ...]:
    """(name, text) of what the function captured."""
    return tuple((visible(name), value_text(value)) for name, value in captured_values(function))


def captured_values(function: Any) -> list[tuple[str, Any]]:
    """(name, value) of every variable that the function closes over, of a partial's arguments, a method's self."""
    found: list[tuple[str, Any]] = []
    for _ in range(8):
        if type(function) is types.MethodType:
            found.append(("self", function.__self__))
            function = function.__func__
        if isinstance(function, functools.partial):
            found += [(f"argument {i}", value) for i, value in enumerate(function.args)]
            found += list(function.keywords.items())
            function = function.func
        code, cells = code_of(function, unwrap=False), getattr(function, "__closure__", None) or ()
        if code is not None:
            found += [(name, _cell(cell)) for name, cell in zip(code.co_freevars, cells, strict=False)]
        inner = guarded(lambda function=function: getattr(function, "__wrapped__", None), lambda _: None)
        if inner is None:
            break
        function = inner
    return found[:32]


def _cell(cell: types.CellType) -> Any:
    return guarded(lambda: cell.cell_contents, lambda _: "(not set yet)")


def code_of(function: Any, unwrap: bool = True) -> types.CodeType | None:
    """What was written in Python, through partials and wrappers."""
    for _ in range(16):
        if type(function) is functools.partial:
            function = function.func
            continue
        code = guarded(lambda function=function: getattr(function, "__code__", None), lambda _: None)
        if type(code) is types.CodeType:
            return code
        inner = guarded(lambda function=function: getattr(function, "__wrapped__", None), lambda _: None)
        if inner is None or not unwrap:
            return None
        function = inner
    return None
