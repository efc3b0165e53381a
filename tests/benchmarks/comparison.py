"""Run what docs/comparison.md says of other tools, and print of each sentence whether it is true here.

    python tests/benchmarks/comparison.py

A sentence of a tool that is not installed is not tried, and the script says so: `pip install wandb jaxviz
ai-edge-model-explorer` in an environment of their own. What only its own documentation can say has a link. The status
is 1 where a sentence is wrong, or no longer stands on the page.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import treeviz as tv

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
CHECKS: list[tuple[str, tuple[str, ...], Callable[[], bool]]] = []
# What they do cannot be run here: a server, a service, or a program with a window.
CITED = {
    "hundreds of runs, shared with a team, for years": "https://docs.wandb.ai, November 2026",
    "The profiler: a trace of every operation on the device, its time, its memory.": (
        "https://openxla.org/xprof, and the page of xprof 2.24.2 on PyPI, November 2026"
    ),
    "in layers that fold": "https://github.com/google-ai-edge/model-explorer, November 2026",
}


@dataclasses.dataclass
class Known:
    w: object


class Unknown:
    def __init__(self) -> None:
        self.w = jnp.ones(3)


def says(sentence: str, *modules: str):
    """Register a function that tries a sentence of the page, with what it needs."""
    return lambda check: CHECKS.append((sentence, modules, check)) or check


@says("It shows a dataclass field by field, and an object of a class that it does not know by its `repr`", "treescope")
def _() -> bool:
    import treescope

    known, unknown = treescope.render_to_text(Known(1.5)), treescope.render_to_text(Unknown())
    return known == "Known(w=1.5)" and unknown.startswith("<") and "w=" not in unknown


@says("with an array that\nJAX cannot see marked as such")
def _() -> bool:
    return "1 hidden array" in tv.render([Unknown()]).text()


@says("if you want code that rebuilds the object", "treescope")
def _() -> bool:
    import treescope

    tree = {"a": [1, (2.5, None)], "b": Known("x")}
    written = treescope.render_to_text(tree, roundtrip_mode=True)
    return eval(written, vars(sys.modules["__main__"]) | {"__main__": sys.modules["__main__"]}) == tree


@says("treeviz uses them\n(`tv.render(tree, values=True)`)", "treescope")
def _() -> bool:
    return any("treescope" in html for html in tv.render([jnp.ones(3)], values=True).values.values())


@says("For 1,000 leaves of this kind it was 33 kB and 87 kB.", "treescope")
def _() -> bool:
    import treescope

    layer = {"w": jax.ShapeDtypeStruct((8, 8), "float32"), "b": jax.ShapeDtypeStruct((8,), "float32")}
    tree = {f"layer{i}": dict(layer) for i in range(500)}
    sizes = len(tv.render(tree)._repr_html_()), len(treescope.render_to_html(tree))
    print(f"  ({sizes[0] / 1000:.0f} kB and {sizes[1] / 1000:.0f} kB)")
    return all(abs(size / 1000 - said) < 2 for size, said in zip(sizes, (33, 87), strict=True))


def _tabulated() -> tuple[str, int]:
    """The table of a model of Flax, and how often the model was called."""
    import flax.linen as nn

    calls = []

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            calls.append(x)
            return nn.Dense(4)(x)

    table = nn.tabulate(Model(), jax.random.key(0), compute_flops=True, console_kwargs={"width": 200})
    return table(jnp.ones((2, 3))), len(calls)


@says("A table of modules: the inputs and outputs of each, its parameters, and with `compute_flops=True`", "flax")
def _() -> bool:
    table = re.sub(r"\x1b\[[0-9;]*m", "", _tabulated()[0])
    return {"float32[2,3]", "float32[2,4]", "float32[3,4]"} <= set(table.split()) and "flops" in table


@says("It calls the model with an\nexample.", "flax")
def _() -> bool:
    return _tabulated()[1] > 0


@says("treeviz never calls your model to show it")
def _() -> bool:
    class Model(dict):
        def __call__(self):
            raise AssertionError

    return "Model" in tv.render([Model()]).text()


@says("`wandb.watch` logs gradients of PyTorch modules by itself; for JAX you", "wandb", "flax")
def _() -> bool:
    import flax.linen as nn
    import wandb

    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": folder}
        run = wandb.init(project="comparison")
        try:
            wandb.watch(nn.Dense(3))
        except (wandb.Error, TypeError) as error:
            return "torch" in str(error)
        finally:
            run.finish()
    return False


@says("They draw what you log.", "tensorboard", "tensorboardX")
def _() -> bool:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboardX import SummaryWriter

    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)
        for step in range(3):
            writer.add_scalar("loss", step, step)
        writer.close()
        read = EventAccumulator(folder).Reload()
        return read.Tags()["scalars"] == ["loss"] and [each.value for each in read.Scalars("loss")] == [0, 1, 2]


@says("with `inspector.log_to(run)`")
def _() -> bool:
    rows = {}
    inspector = tv.GradientInspector()
    with inspector.log_to(rows.__setitem__, every=1):
        inspector.record(tv.measure(grads={"w": jnp.full(4, 2.0)}))
    return np.isclose(rows[0]["grads norm/w"], 4)


@says("TFLite, TensorFlow, MLIR, PyTorch's exported programs, and others by adapters", "model_explorer")
def _() -> bool:
    found = importlib.util.find_spec("model_explorer")
    assert found is not None and found.origin is not None
    names = " ".join(path.name for path in Path(found.origin).parent.glob("builtin_*_adapter.py"))
    return all(format in names for format in ("tflite", "tf_", "mlir", "pytorch_exportedprogram"))


@says("Draws the forward pass of a JAX function in a notebook, interactively", "jaxviz")
def _() -> bool:
    import jaxviz

    return "tanh" in jaxviz.trace_model(lambda x: jnp.tanh(x @ x), jnp.ones((3, 3)), return_html=True)


@says("or the compiled program of one device", "jaxviz")
def _() -> bool:
    import jaxviz

    drawn = jaxviz.trace_model(lambda x: jnp.tanh(x @ x), jnp.ones((3, 3)), view="per_device", return_html=True)
    return "tanh" in drawn


@says("print a tree as text without another\ndependency", "equinox", "pytreeclass")
def _() -> bool:
    import equinox
    import pytreeclass

    tree = {"w": jnp.ones((3, 4))}
    told = equinox.tree_pformat(tree), str(jax.tree.map(jnp.shape, tree)), pytreeclass.tree_summary(tree)
    return all(re.search(r"3, ?4", each) for each in told)


def main() -> int:
    page, n_wrong = PAGE.read_text("utf-8"), 0
    for sentence, modules, check in CHECKS:
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if sentence not in page:
            verdict = "NOT ON THE PAGE"
        elif missing:
            verdict = f"not tried: {', '.join(missing)} is not installed"
        else:
            verdict = "true" if check() else "WRONG"
        n_wrong += verdict.isupper()
        print(f"{verdict}: {' '.join(sentence.split())}")
    for sentence, source in CITED.items():
        n_wrong += sentence not in page
        print(f"{source if sentence in page else 'NOT ON THE PAGE'}: {sentence}")
    return n_wrong > 0


if __name__ == "__main__":
    sys.exit(main())
