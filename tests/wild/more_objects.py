"""Objects of further libraries for `objects.py`: science, probability and reinforcement learning."""

from __future__ import annotations

import jax
import jax.numpy as jnp

KEY = jax.random.key(0)
X = jnp.linspace(0.0, 1.0, 5)


def cola():
    import cola

    yield "dense operator", (dense := cola.ops.Dense(jnp.eye(3)))
    yield "Kronecker product", cola.ops.Kronecker(dense, cola.ops.Diagonal(jnp.ones(2)))


def distreqx():
    from distreqx import bijectors, distributions

    normal = distributions.Normal(jnp.zeros(()), jnp.ones(()))
    yield "transformed distribution", distributions.Transformed(normal, bijectors.Tanh())
    yield "independent", distributions.Independent(distributions.Normal(jnp.zeros(3), jnp.ones(3)))


def flashbax():
    import flashbax

    buffer = flashbax.make_flat_buffer(max_length=32, min_length=2, sample_batch_size=2)
    yield "buffer", buffer
    yield "state of the buffer", buffer.init({"obs": jnp.zeros(4), "reward": jnp.float32(0)})
    buffer = flashbax.make_prioritised_flat_buffer(max_length=32, min_length=2, sample_batch_size=2)
    yield "prioritised state", buffer.init({"obs": jnp.zeros(4)})


def flowMC():
    from flowMC.resource.buffers import Buffer

    yield "buffer", Buffer("positions", (2, 3), 0)


def gymnax():
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    yield "parameters", params
    yield "environment state", env.reset(KEY, params)[1]


def interpax():
    import interpax

    yield "interpolator", interpax.Interpolator1D(X, X**2)
    yield "cubic spline", interpax.CubicSpline(X, X**2)


def jax_md():
    from jax_md import energy, partition, simulate, space

    displacement, shift = space.periodic(4.0)
    positions = 4 * jax.random.uniform(KEY, (8, 3))
    init, _ = simulate.nvt_nose_hoover(energy.soft_sphere_pair(displacement), shift, 1e-3, kT=1.0)
    yield "thermostat", init(KEY, positions)
    yield "neighbor list", partition.neighbor_list(displacement, 4.0, 1.0).allocate(positions)


def pgx():
    import pgx

    yield "state", pgx.make("go_9x9").init(KEY)


def qdax():
    from qdax.core.containers.mapelites_repertoire import MapElitesRepertoire
    from qdax.core.neuroevolution.buffers.buffer import Transition

    found = {"genotypes": jnp.ones((4, 3)), "fitnesses": jnp.ones((4, 1)), "descriptors": jnp.ones((4, 2))}
    yield "repertoire", MapElitesRepertoire.init(**found, centroids=jnp.ones((6, 2)), extra_scores={})
    yield "transition", Transition.init_dummy(observation_dim=3, action_dim=2)


def quadax():
    import quadax

    yield "information", quadax.quadgk(lambda x: jnp.exp(-x), [0, 1.0])[1]


def sympy2jax():
    import sympy
    import sympy2jax

    x, y = sympy.symbols("x y")
    yield "module", sympy2jax.SymbolicModule([2.0 * sympy.cos(x) + y])


def tensorflow_probability():
    from tensorflow_probability.substrates import jax as tfp

    yield "distribution", (normal := tfp.distributions.Normal(jnp.zeros(2), 1.0))
    yield "transformed distribution", tfp.distributions.TransformedDistribution(normal, tfp.bijectors.Exp())
    kernel = tfp.mcmc.HamiltonianMonteCarlo(lambda x: -jnp.sum(x**2), step_size=0.1, num_leapfrog_steps=2)
    yield "HMC results", jax.eval_shape(kernel.bootstrap_results, jnp.ones(2))


def tinygp():
    from tinygp import GaussianProcess, kernels

    yield "kernel", (kernel := 1.5 * kernels.Matern32(0.5) + kernels.ExpSquared(2.0))
    yield "process", GaussianProcess(kernel, X, diag=0.1)
    yield "quasiseparable process", GaussianProcess(kernels.quasisep.Matern32(0.5), X, diag=0.1)


def traceax():
    import traceax

    yield "estimator", traceax.HutchinsonEstimator()
    yield "X-trace", traceax.XTraceEstimator()
