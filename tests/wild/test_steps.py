"""Published training steps under watch: gradients are those taken apart, results stay, and no alarm is false.

Results are compared byte by byte. Those in `PRECISE` are compiled as users compile them; the others quickly, and in one
program with their gradients taken apart, so that what both compute is compiled once. That says that nothing but
measuring is added, not that XLA rounds alike: tests/benchmarks/bits.py compares all as they are used.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from watched import same_bytes, true_norms
from wild import libraries, projects, sequences
from wild.moved import wrong
from wild.published import PUBLISHED

import treeviz as tv
from treeviz.steps.tracing import verify

assert libraries and projects and sequences  # they register their steps
N_STEPS, AT_CALL = 20, 16  # as in `verify`
PRECISE = (
    "jax_documentation_mlp",
    "optax_lookahead",
    "optax_adversarial_training",
)
TRAINED = [*PUBLISHED][::6]  # whose leaves that move are compared with those that `trained` names; wild/moved.py: all
STEPS = [pytest.param(name, marks=[pytest.mark.optimized] * (name in PRECISE)) for name in PUBLISHED]


@pytest.mark.parametrize("name", STEPS)
def test_a_published_step_is_seen_whole_and_stays_as_it_is(name, monkeypatch):
    step, state, batch, gradients = PUBLISHED[name][1]()
    if name in PRECISE:
        monkeypatch.setattr(verify, "AT_CALL", AT_CALL)  # a run compares itself
        apart = jax.jit(gradients)
        plainly = lambda *call: (step(*call), apart(*call))
    else:
        plainly = jax.jit(lambda *call: (step(*call), gradients(*call)))
    inspector = tv.GradientInspector()
    watched = inspector.watch(step)
    plain, differs = state, False
    for number in range(N_STEPS):
        call = *plain, *batch(number)
        plain, trees = plainly(*call)
        results, plain = as_tuple(watched(*call)), as_tuple(plain)
        # XLA may round otherwise where it computes the gradients, too: then the step itself is asked.
        differs = differs or not (same_bytes(results, plain) or same_bytes(results, as_tuple(step(*call))))
        plain = plain[: len(state)]
    if name in TRAINED:
        assert wrong(step, tv.trained(step, *state, *batch(0)), state, plain) == []
    assert watched.trouble == ""
    assert not differs or any("differ" in note for note in inspector.notes)
    history = inspector.history
    assert len(history) >= N_STEPS
    assert [found.sentence for found in inspector.findings if found.severity != "info"] == []
    seen = [history.last(name)[1]["norm"] for name in history.sources]
    for tree in trees:
        assert any(len(norms) == len(true_norms(tree)) and np.allclose(norms, true_norms(tree), 1e-5) for norms in seen)


def as_tuple(results) -> tuple:
    return results if isinstance(results, tuple) else (results,)
