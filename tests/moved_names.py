"""A program that hides the private names that treeviz uses, one at a time, and says what of treeviz still works.

    python tests/moved_names.py jax          # or equinox, flax, ipywidgets

Prints a JSON object: for each name of a table, and for each private module in it, what failed and what was warned of.
Names are hidden from treeviz alone, so that the library itself goes on, as a release that has moved them would.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import sys
import tempfile
import types
import warnings
from pathlib import Path

hidden_modules: set[str] = set()
hidden_names: set[tuple[str, str]] = set()  # (module, attribute)
_import, _import_module = builtins.__import__, importlib.import_module


def is_hidden(module: str) -> bool:
    return any(f"{module}.".startswith(f"{hidden}.") for hidden in hidden_modules)


def asked_by_treeviz() -> bool:
    frame = sys._getframe(2)
    while frame is not None and (
        frame.f_code.co_name == "__getattribute__"  # of a class in Python
        or frame.f_globals.get("__name__", "").startswith("importlib")
    ):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("treeviz")


def import_(name, globals=None, locals=None, fromlist=(), level=0):
    if (globals or {}).get("__name__", "").startswith("treeviz") and not level:
        for module in (name, *(f"{name}.{part}" for part in fromlist or ())):
            if is_hidden(module):
                raise ModuleNotFoundError(f"No module named {module!r}")
        if any((name, part) in hidden_names for part in fromlist or ()):
            raise ImportError(f"cannot import name from {name!r}")
    return _import(name, globals, locals, fromlist, level)


def import_module(name, package=None):
    if is_hidden(name) and asked_by_treeviz():
        raise ModuleNotFoundError(f"No module named {name!r}")
    return _import_module(name, package)


class Concealing(types.ModuleType):
    def __getattribute__(self, name):
        module = super().__getattribute__("__name__")
        if ((module, name) in hidden_names or f"{module}.{name}" in hidden_modules) and asked_by_treeviz():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return super().__getattribute__(name)


class Concealed:
    """In the place of an attribute of a class or its instances."""

    def __init__(self, cls, name):
        self.name, self.before = name, inspect.getattr_static(cls, name, None)

    def __get__(self, instance, owner=None):
        if asked_by_treeviz():
            raise AttributeError(self.name)
        with contextlib.suppress(AttributeError, KeyError):  # a class may have a `__getattr__` that asks for this name
            return object.__getattribute__(instance, "__dict__")[self.name]
        before = self.before
        return before.__get__(instance, owner) if hasattr(type(before), "__get__") else before

    def __set__(self, instance, value):
        if hasattr(type(self.before), "__set__"):
            self.before.__set__(instance, value)
        else:
            instance.__dict__[self.name] = value


def hide_module(name: str, undo: contextlib.ExitStack) -> None:
    hidden_modules.add(name)
    undo.callback(hidden_modules.discard, name)
    parent = name.rpartition(".")[0]
    if parent:
        conceal_in(importlib.import_module(parent), undo)


def conceal_in(module, undo: contextlib.ExitStack) -> None:
    if module.__class__ is not Concealing:
        undo.callback(setattr, module, "__class__", module.__class__)
        module.__class__ = Concealing


def hide_name(module, name: str, undo: contextlib.ExitStack) -> None:
    hidden_names.add((module.__name__, name))
    undo.callback(hidden_names.discard, (module.__name__, name))
    conceal_in(module, undo)


def hide_in_class(cls: type, name: str, undo: contextlib.ExitStack) -> None:
    owner = next(
        (base for base in cls.__mro__ if name in vars(base) or name in vars(base).get("__annotations__", {})), cls
    )
    annotations = vars(owner).get("__annotations__", {})
    if name in annotations:
        undo.callback(annotations.__setitem__, name, annotations.pop(name))
    concealed, had = Concealed(owner, name), name in vars(owner)
    type.__setattr__(owner, name, concealed)
    undo.callback(*(type.__setattr__, owner, name, concealed.before) if had else (type.__delattr__, owner, name))


def renamed_code(code: types.CodeType, name: str, *, function: bool) -> types.CodeType:
    """The code with a global name, or the name of a function that it defines, changed."""
    inner = tuple(renamed_code(c, name, function=function) if inspect.iscode(c) else c for c in code.co_consts)
    if function:
        return code.replace(co_consts=inner, co_name="moved" if code.co_name == name else code.co_name)
    names = tuple(f"{name}_moved" if n == name else n for n in code.co_names)
    return code.replace(co_consts=inner, co_names=names)


def rename_in_code(function, name: str, undo: contextlib.ExitStack, *, is_function: bool) -> None:
    function = getattr(function, "__wrapped__", function)
    undo.callback(setattr, function, "__code__", function.__code__)
    if not is_function and name in function.__globals__:
        function.__globals__[f"{name}_moved"] = function.__globals__[name]
    function.__code__ = renamed_code(function.__code__, name, function=is_function)


def hide_in_results(module, function: str, name: str, undo: contextlib.ExitStack) -> None:
    """An attribute of what a function returns."""
    original = getattr(module, function)
    example = original(lambda x: x)
    with contextlib.suppress(TypeError, AttributeError):
        hide_in_class(type(example), name, undo)  # not of a class that is written in C++
        return

    def without(*args, **kwargs):
        result = original(*args, **kwargs)
        vars(result).pop(name, None)
        return result

    setattr(module, function, without)
    undo.callback(setattr, module, function, original)


def hide(where: str, undo: contextlib.ExitStack) -> None:
    for place in where.split(" or "):
        module_name, _, path = place.partition(":")
        if not path:
            hide_module(module_name, undo)
            continue
        try:
            module = value = importlib.import_module(module_name)
            *steps, name = path.split(".")
            if steps and steps[-1] in ("<globals>", "<locals>"):
                for step in steps[:-1]:
                    value = getattr(value, step)
                rename_in_code(value, name, undo, is_function=steps[-1] == "<locals>")
                continue
            if steps and steps[-1].endswith("()"):
                hide_in_results(module, steps[-1][:-2], name, undo)
                continue
            for step in steps:
                value = getattr(value, step)
        except (ImportError, AttributeError):
            continue  # another release has it there
        if value is module:
            hide_name(module, name, undo)
            if isinstance(vars(module).get(name), type):  # known by the name of its class
                cls = vars(module)[name]
                undo.callback(setattr, cls, "__name__", cls.__name__)
                cls.__name__ = "Moved"
        else:
            hide_in_class(value if isinstance(value, type) else type(value), name, undo)


def forget_treeviz() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "treeviz"]:
        del sys.modules[name]


class Trips:
    """What must work whatever a library has moved: each method is one of them."""

    def __init__(self, library: str, folder: Path) -> None:
        self.folder = folder
        self.params = dict(zip("wb", two_arrays(), strict=True))
        self.make_tree, self.make_step = LIBRARIES.get(library, (lambda: self.params, jitted_step))

    def render(self):
        import treeviz

        assert "w" in treeviz.render(self.make_tree()).text()

    def explore(self):
        import treeviz

        if importlib.util.find_spec("ipywidgets") is None:
            return
        widget = treeviz.explore(self.make_tree())
        widget.query = "w"
        widget.close()

    def record(self):
        import treeviz

        self.inspector = treeviz.GradientInspector()
        self.inspector.record(treeviz.measure(grads=self.params))
        assert len(self.inspector.history.sources) == 1

    def load(self):
        import treeviz

        path = self.inspector.save(self.folder / "run.treeviz")
        assert "w" in treeviz.GradientInspector.load(path).render().text()

    def step(self):
        """The user's own, under watch: the same results."""
        import jax
        import numpy as np

        import treeviz

        step, arguments = self.made = self.make_step()
        expected = step(*arguments())
        inspector = treeviz.GradientInspector()
        watched = inspector.watch(step)
        for _ in range(2):
            got = watched(*arguments())
        left, right = (jax.tree.leaves(tree) for tree in (expected, got))
        assert all(map(np.array_equal, left, right)) and len(left) == len(right)
        inspector.flush()
        self.is_watched = not watched.trouble

    def block(self):
        """The same, called in a block."""
        import jax
        import numpy as np

        import treeviz

        step, arguments = self.made
        with treeviz.GradientInspector().watching() as called:
            got = step(*arguments())
        assert all(map(np.array_equal, jax.tree.leaves(step(*arguments())), jax.tree.leaves(got)))
        self.is_seen = bool(called.watched)


@functools.cache
def two_arrays():
    import jax.numpy as jnp

    return jnp.arange(3.0), jnp.ones(3)


def jitted_step():
    import jax
    import jax.numpy as jnp

    import treeviz

    step = jax.jit(lambda w, x: w - jax.grad(lambda w: jnp.sum((treeviz.tap(w, "w") * x) ** 2))(w))
    return step, two_arrays


@functools.cache
def equinox_model():
    import equinox as eqx
    import jax

    key = jax.random.key(0)
    linear = eqx.nn.Linear(2, 3, key=key)
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")
    shared = eqx.nn.Shared((linear, linear), lambda both: both[1].weight, lambda both: both[0].weight)
    return {"w": [norm, state, shared, linear.__call__]}


def equinox_step():
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    @eqx.filter_jit
    def step(model, x):
        grads = eqx.filter_grad(lambda model: jnp.sum(model(x) ** 2))(model)
        return eqx.apply_updates(model, grads)

    arguments = eqx.nn.Linear(2, 3, key=jax.random.key(0)), jnp.ones(2)
    return step, lambda: arguments


@functools.cache
def flax_model():
    from flax import nnx

    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    return {"w": [model, nnx.split(model), nnx.to_flat_state(nnx.state(model))]}


def flax_step():
    import jax.numpy as jnp
    from flax import nnx

    @nnx.jit
    def step(model, x):
        return nnx.grad(lambda model: jnp.sum(model(x) ** 2))(model)

    arguments = nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jnp.ones((1, 2))
    return step, lambda: arguments


LIBRARIES = {"equinox": (equinox_model, equinox_step), "flax": (flax_model, flax_step)}


def try_trips(library: str, folder: Path, *, is_new: bool) -> dict[str, object]:
    """What fails, and what is warned of.

    Args:
      is_new: treeviz is imported again.
    """
    if is_new:
        forget_treeviz()
    elif "treeviz.integrations" in sys.modules:
        sys.modules["treeviz.tree.runtime"]._warned.clear()
        sys.modules["treeviz.integrations"]._loaded.clear()
    failed = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trips = Trips(library, folder)
        for name in ("render", "explore", "record", "load", "step", "block"):
            try:
                getattr(trips, name)()
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"
    ours = [str(w.message) for w in caught if "treeviz" in str(w.message) or str(w.message).startswith("watch")]
    results = {name: getattr(trips, name, False) for name in ("is_watched", "is_seen")}
    return {"failed": failed, "warned": ours, **results}


TABLES = {
    "jax": "treeviz.steps.tracing.jax_private",
    "equinox": "treeviz.integrations.equinox",
    "flax": "treeviz.integrations.flax",
    "ipywidgets": "treeviz.views.widget.widget",
}
PUBLIC = ("jax.core", "equinox.nn", "flax.nnx", "jax.experimental.shard_map")


def table(library: str) -> list:
    return list(importlib.import_module(TABLES[library]).PRIVATE)


def cases(library: str) -> dict[str, tuple[str, ...]]:
    """What is hidden in each case: a name, a module, or all of them."""
    names = [name.where for name in table(library)]
    modules = {place.partition(":")[0] for where in names for place in where.split(" or ")}
    private = sorted(module for module in modules if "." in module and module not in PUBLIC)
    found = {"nothing": (), **{name: (name,) for name in names}, **{m: (m,) for m in private}}
    return {**found, "everything": tuple(names)}


def main(library: str) -> None:
    builtins.__import__, importlib.import_module = import_, import_module
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for case, names in cases(library).items():
            with contextlib.ExitStack() as undo:
                for name in names:
                    hide(name, undo)
                found[case] = try_trips(library, Path(folder), is_new=case.startswith("jax._src") and ":" not in case)
    print("FOUND", json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
