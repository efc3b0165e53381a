"""Published training steps under watch: gradients are those taken apart, results stay, and no alarm is false.

Results are compared byte by byte. Those of the step itself, and its gradients taken apart, are computed in the program
that measures, so that what all compute is compiled once. That says that nothing but measuring is added, not that XLA
rounds alike: tests/benchmarks/bits.py compares all as they are used, and so does `PRECISE` here.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from watched import beside, same_bytes, true_norms
from wild import libraries, projects, sequences
from wild.moved import wrong
from wild.published import PUBLISHED

import treeviz as tv

assert libraries and projects and sequences  # they register their steps
N_STEPS = 20
PRECISE = ("optax_adversarial_training",)
# They run no line of treeviz that others do not run; tests/benchmarks/bits.py and wild/moved.py run all.
ALIKE = {"cleanrl_critic", "denoising_diffusion", "flax_ppo", "jax_mnist_vae", "nano_gpt"}
TRAINED = [*PUBLISHED][::6]  # whose leaves that move are compared with those that `trained` names; wild/moved.py: all
STEPS = [
    pytest.param(name, marks=[pytest.mark.optimized] * (name in PRECISE)) for name in PUBLISHED if name not in ALIKE
]


@pytest.mark.parametrize("name", STEPS)
def test_a_published_step_is_seen_whole_and_stays_as_it_is(name, monkeypatch):
    step, state, batch, gradients = PUBLISHED[name][1]()
    if name in PRECISE:
        apart = jax.jit(gradients)
    else:
        beside(lambda *call: (step(*call), gradients(*call)), monkeypatch)
    inspector = tv.GradientInspector()
    watched = inspector.watch(step)
    plain = state
    for number in range(N_STEPS):
        call = *plain, *batch(number)
        results, (plain, trees) = (watched(*call), (step(*call), apart(*call))) if name in PRECISE else watched(*call)
        assert same_bytes(results, plain), number
        plain = as_tuple(plain)[: len(state)]
    if name in TRAINED:
        assert wrong(step, tv.trained(step, *state, *batch(0)), state, plain) == []
    assert watched.trouble == ""
    history = inspector.history
    assert len(history) >= N_STEPS
    assert [found.sentence for found in inspector.findings if found.severity != "info"] == []
    seen = [history.last(name)[1]["norm"] for name in history.sources]
    for tree in trees:
        assert any(len(norms) == len(true_norms(tree)) and np.allclose(norms, true_norms(tree), 1e-5) for norms in seen)


def as_tuple(results) -> tuple:
    return results if isinstance(results, tuple) else (results,)
