"""Faults that people meet, planted in the steps of `agents`, `densities`, `language` and `sciences`: see `FAULTS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from wild import agents, densities, language, sciences
from wild.published import images

import treeviz as tv

FURTHER = {module.__name__ for module in (agents, densities, language, sciences)}
N_STEPS = 60
BAD = 30  # the step of a fault that is not there from the start
RESUMED = 50


class Fault(NamedTuple):
    """A fault in a published step.

    Attributes:
      step: The name of the step.
      expected: A regular expression, found in the first finding as text: "kind: sentence advice".
      first: The first step of that finding, or the one before it; None where it depends on the data.
      arguments: What the step is made with.
      state: Changes the state before the step of this number.
      batch: Makes the batch: of that without the fault, and the number of the step.
    """

    step: str
    expected: str
    first: int | None = 0
    arguments: Mapping[str, Any] = MappingProxyType({})
    state: Callable[[int, tuple], tuple] = lambda number, state: state
    batch: Callable[[Callable, int], tuple] = lambda batch, number: batch(number)

    def is_found(self, inspector: tv.GradientInspector) -> bool:
        """Whether the cause comes first, in a run of `N_STEPS`."""
        if not (found := inspector.findings):
            return False
        histories = (inspector.history.values(name, "norm") for name in inspector.history.sources)
        n_turns = max(norms.until[-1] + 1 for norms in histories if len(norms.n)) // N_STEPS  # of a loop in each step
        is_in_time = self.first is None or found[0].first // n_turns - self.first in (0, 1)
        return is_in_time and re.search(self.expected, str(found[0]), re.DOTALL) is not None


def once(change: Callable) -> Callable[[Callable, int], tuple]:
    """The batch of step `BAD` is changed."""
    return lambda batch, number: change(*batch(number)) if number == BAD else batch(number)


def with_first(array: np.ndarray, value: Any) -> np.ndarray:
    """A copy whose first element, or row, is another."""
    array = np.array(array)
    array[0] = value
    return array


def in_another_order(texts: np.ndarray, number: int) -> np.ndarray:
    """From step `BAD` on, the words of each text are shuffled."""
    return np.random.default_rng(number).permuted(texts, axis=1) if number >= BAD else texts


def dead_layer(params: dict) -> dict:
    """The bias in layer 1 of a stack along axis 1 is far below zero."""
    layers = params["params"]["layers"]
    wi = layers["wi"] | {"bias": layers["wi"]["bias"].at[:, 1].set(-100)}
    return {"params": params["params"] | {"layers": layers | {"wi": wi}}}


def without_moments(number: int, state: tuple) -> tuple:
    """The optimizer begins anew, as where only parameters were restored."""
    return (state[0], optax.adam(3e-3).init(state[0])) if number == RESUMED else state


FAULTS = {
    # A part that gets no gradient
    "stop_gradient_before_the_head": Fault(
        "levanter_stacked_blocks", r"^dead: .*stop_gradient", arguments={"before_head": lax.stop_gradient}
    ),
    "two_factors_of_zero": Fault(
        "tunix_adapters", r"(?i)both.*(zero|factors)|zero.*both|factors", arguments={"scale_a": 0.0}
    ),
    "the_policy_is_its_own_reference": Fault("tunix_preferences", r"^dead: All of grads", arguments={"is_same": True}),
    "a_dead_layer_in_a_scan": Fault(
        "maxtext_mean_over_tokens", r"^dead: .*\['w[io]'\]\['\w+'\].*\b1\b", arguments={"change": dead_layer}
    ),
    "an_expert_that_is_never_chosen": Fault(
        "maxtext_experts", r"^dead: .*\['experts'\]\[2\].*router", arguments={"router_bias": np.float32([0, 0, -99, 0])}
    ),
    "units_that_are_never_positive": Fault(
        "penzai_trainer", r"^dead: grads\[4\].* 4 other leaves.*units that are zero for every example",
        arguments={"activation": lambda x: jax.nn.relu(x - 100)},
    ),
    "a_density_below_zero": Fault(
        "jaxnerf_coarse_and_fine", r"^dead: .*(ReLU|sigma)", arguments={"density": jax.nn.relu, "density_bias": -50.0}
    ),
    "saturated_units": Fault(
        "diffrax_latent_ode", r"^(dead|vanishing): .*\.(field|to_data)\[0\].*(saturated|zero)",
        arguments={"activation": lambda x: jax.nn.sigmoid(x - 30)},
    ),
    "a_normalisation_of_one_example": Fault(
        "keras_stateless_loop", r"^dead: .*6 other leaves.*an earlier one.*zero for every example",
        batch=lambda _, number: tuple(x[:1] for x in images(n=16)(number)),
    ),
    # No update, or the wrong ones
    "a_misspelled_mask": Fault(
        "easylm_llama", r"^frozen: .*(mask|label)",
        arguments={"is_trained": lambda path: "kernal" in path or "embedding" in path},
    ),
    "a_schedule_that_ended": Fault(
        "t5x_adafactor", r"(?i)(no update|schedule|zero).*since step 3|schedule.*ended", None,
        {"rate": optax.linear_schedule(1e-2, 0.0, BAD)},
    ),
    "updates_lost_in_bfloat16": Fault(
        "big_vision_siglip", r"bfloat16.*float32", arguments={"dtype": jnp.bfloat16, "rate": 1e-5}
    ),
    "a_rate_times_100": Fault(
        "easylm_llama", r"^\w+: .*\b(learning )?rate\b", BAD,
        {"rate": lambda step: jnp.where(step < BAD, 1e-3, 0.1)},
    ),
    "a_rate_far_too_high": Fault(
        "implicit_q_learning", r"^ratio: .*moved .* times their norm.*learning rate", arguments={"rate": 1.0}
    ),
    "moments_lost_at_a_resume": Fault(
        "flax_molecules", r"(?i)optimizer.{0,20}state", RESUMED, state=without_moments
    ),
    "gradients_of_one_device": Fault(
        "transformers_causal_model", r"(?i)devices?\b.*(psum|pmean|differ|apart)", arguments={"is_reduced": False}
    ),
    "sums_instead_of_means": Fault(
        "levanter_stacked_blocks", r"^clipping: ", arguments={"reduce": jnp.sum, "n_micro_divided": 1}
    ),
    # Data
    "pixels_that_are_not_scaled": Fault(
        "brax_ppo", r"^spike: .*batch", BAD, {"scale": lambda number: 50.0 if number == BAD else 1.0}
    ),
    "texts_in_another_order": Fault(
        "t5x_adafactor", r"^spike: .*loss jumped", BAD,
        batch=lambda batch, number: tuple(in_another_order(x, number) for x in batch(number)),
    ),
    "a_nan_in_the_data": Fault(
        "dreamer_world_model", r"^nonfinite: .*batch\[1\] has 36 NaN", BAD,
        batch=once(lambda key, seen, *rest: (key, with_first(seen, np.nan), *rest)),
    ),
    "a_label_out_of_range": Fault(
        "nnx_split_once", r"^nonfinite: .*\b4\b.*\b4\b", BAD, batch=once(lambda x, labels: (x, with_first(labels, 4)))
    ),
    "an_atom_that_has_no_row": Fault(
        "flax_molecules", r"^nonfinite: .*index.*\b6\b", BAD,
        batch=once(lambda graph, labels: ((with_first(graph[0], 6), *graph[1:]), labels)),
    ),
    # Arithmetic: the operation is named with its line
    "no_token_in_a_batch": Fault(
        "maxtext_mean_over_tokens", r"^nonfinite: .*\bdiv(ision)? at language\.py", BAD, {"least": 0.0},
        batch=once(lambda words, weights: (words, 0 * weights)),
    ),
    "rewards_that_are_all_equal": Fault(
        "tunix_group_relative_policy", r"^nonfinite: .*\bdiv(ision)? at language\.py", 3, {"epsilon": 0.0}  # by chance
    ),
    "the_log_of_a_squash": Fault(
        "brax_sac", r"^nonfinite: .*\blog at \w+\.py", BAD, {"log_of": lambda raw: jnp.log(1 - jnp.tanh(raw) ** 2)},
        batch=once(lambda data: ({name: 100 * x for name, x in data.items()},)),
    ),
    "two_atoms_in_one_place": Fault(
        "forces_of_a_potential", r"^nonfinite: .*\b(sqrt|div(ision)?|square root)\b.* at \w+\.py", BAD,
        {"distance": jnp.sqrt}, batch=once(lambda places, *rest: (np.repeat(places[:, :1], 5, axis=1), *rest)),
    ),
    "a_scale_below_zero": Fault(
        "numpyro_hierarchical_svi", r"^nonfinite: .*\blog at densities\.py", 0,
        {"positive": lambda x: x, "start": -0.1},
    ),
    "probabilities_that_underflow": Fault(
        "dynamax_hidden_markov_model", r"^nonfinite: .*\b(log|div(ision)?) at densities\.py",
        arguments={"in_logs": False, "length": 200},
    ),
    "a_factor_without_jitter": Fault(
        "gpjax_sparse_process", r"^nonfinite: .*cholesky at densities\.py", None, {"jitter": -1e-3}
    ),
    "a_noise_of_zero": Fault(
        "score_of_noisy_images", r"^nonfinite: .*\bdiv(ision)? at densities\.py", 10, {"least_time": 0.0}
    ),
    "a_flow_that_diverges": Fault(
        "flowjax_masked_autoregressive_flow", r"^(nonfinite|exploding|ratio|spike): .*(learning rate|diverged)", None,
        {"rate": 0.5, "bounded": jnp.exp},
    ),
}  # fmt: skip
