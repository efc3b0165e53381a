"""The script for a machine with a GPU runs on this one, too, and fails where something does not hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from compiling import PLAIN_FLAGS

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
BOTH = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import gpu, jax
from treeviz.steps.tracing import instrumented, watch
from treeviz.tree import leaves as sharding

gpu.best.__defaults__ = (1,)  # nobody reads how long it takes
status = gpu.main()
print(f"\\n@@ {status}")
called, instrument = watch.Watched.__call__, instrumented.instrumented
watch.Watched.__call__ = lambda self, *args: jax.tree.map(lambda x: x * 1.001, called(self, *args))
instrumented.instrumented = lambda *args, **keywords: instrument(*args, **{**keywords, "donate": False})
sharding._memory = lambda *_: "somewhere"
gpu.locate_nan = lambda *_: None
gpu.has_copies = lambda _: True
gpu.best = lambda *_: 1.0
gpu.time_step = gpu.move_window = gpu.read_values = lambda *_: None
sys.exit(gpu.main())
"""
SABOTAGE = ["no array keeps a copy", "bits are the same", "each step that donates", "is named right", "a log of 0"]


@pytest.fixture(scope="module")
def said() -> tuple[str, str]:
    """What the script says as it is, and when it is run again in the same process with all that it checks sabotaged."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": PLAIN_FLAGS}
    command = [sys.executable, "-c", BOTH, str(SCRIPT.parent), "--small", "--minutes", "60"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    whole, status, sabotaged = done.stdout.partition("\n@@ 0\n")
    assert status and done.returncode == 1, done.stdout + done.stderr
    return whole, sabotaged


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
