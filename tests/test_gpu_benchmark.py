"""The script for a machine with a GPU runs on this one, too, and fails where something does not hold."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from pathlib import Path

import jax
import pytest

from treeviz.steps.tracing import instrumented, watch
from treeviz.tree import leaves as sharding

for library in ("optax", "equinox", "anywidget"):
    pytest.importorskip(library)

SCRIPT = Path(__file__).parent / "benchmarks" / "gpu.py"
CHECKED = {
    "1,000 arrays on the device": ["walk, text and page of all arrays under a guard", "no array keeps a copy"],
    "a watched step: mlp": [
        "the step is watched",
        "bits are the same",
        "each step that donates",
        "a look keeps no array",
    ],
    "explore: a window of values": ["its values are right", "to move it compiles nothing", "the device is named"],
    "locate_nan": ["a step without a NaN has none", "a log of 0 is located"],
    "kinds of memory": [r"\w+ is named right", r"the bytes in \w+ are counted there"],
    "the values of 60 arrays": ["one NaN among all values is counted", "no array keeps a copy"],
}
SABOTAGE = ["no array keeps a copy", "bits are the same", "each step that donates", "is named right", "a log of 0"]


@pytest.fixture(scope="module")
def said() -> tuple[str, str]:
    """What the script says as it is, and when it is run again with all that it checks sabotaged."""
    called, instrument = watch.Watched.__call__, instrumented.instrumented
    with pytest.MonkeyPatch.context() as patch, jax.numpy_rank_promotion("allow"):
        patch.syspath_prepend(SCRIPT.parent)
        gpu = importlib.import_module("gpu")
        patch.setattr(sys, "argv", [str(SCRIPT), "--small", "--minutes", "60"])
        patch.setattr(gpu.best, "__defaults__", (1,))  # nobody reads how long it takes
        patch.setattr(jax.monitoring, "clear_event_listeners", lambda: None)  # those of other tests
        whole, status = printed(gpu.main)
        assert status == 0, whole
        patch.setattr(watch.Watched, "__call__", lambda *call: jax.tree.map(lambda x: x * 1.001, called(*call)))
        patch.setattr(
            instrumented, "instrumented", lambda *args, **keywords: instrument(*args, **{**keywords, "donate": False})
        )
        patch.setattr(sharding, "_memory", lambda *_: "somewhere")
        forget_facts()
        patch.setattr(gpu, "has_copies", lambda _: True)
        patch.setattr(gpu, "best", lambda *_: 1.0)
        for name in ("locate_nan", "time_step", "move_window", "read_values", "run_steps"):
            patch.setattr(gpu, name, lambda *_, **__: None)
        sabotaged, status = printed(gpu.main)
        assert status == 1, sabotaged
    forget_facts()
    return whole, sabotaged


def forget_facts() -> None:
    """Those of arrays, which the trees of one process share."""
    for value in vars(sharding).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def printed(main) -> tuple[str, int]:
    promotion = jax.config.jax_numpy_rank_promotion
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            status = main()
        finally:
            jax.config.update("jax_numpy_rank_promotion", promotion)
    return out.getvalue(), status


def test_all_that_the_script_checks_holds_at_a_small_size_without_a_gpu(said):
    whole, _ = said
    assert "FAILS" not in whole
    _, *parts, last = whole.strip().split("\n\n")
    found = dict(part.split("\n", 1) for part in parts)
    assert last == "all that can be checked holds" and found.keys() == CHECKED.keys()
    for name, checks in CHECKED.items():
        for check in checks:
            assert re.search(f"^  holds +{check}", found[name], re.MULTILINE), (name, check)
    assert "at [3, 5]" in found["locate_nan"]
    assert re.search(r"goal <= 1.3x: (reached|missed)", found["the values of 60 arrays"])


def test_it_fails_where_something_does_not_hold(said):
    _, sabotaged = said
    for what in SABOTAGE:
        assert re.search(f"^  FAILS .*{what}", sabotaged, re.MULTILINE), (what, sabotaged)
