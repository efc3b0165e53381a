"""A program that compares treeviz with JAX on objects of 41 libraries, most of which the tests do not install.

    python tests/wild/objects.py                        # all libraries; a minute or two
    python tests/wild/objects.py numpyro jraph          # some of them
    python tests/wild/objects.py quax --show            # what a terminal shows, too; --show 120 for a width

JAX's own flatten is the truth: the order, paths, number, shapes, dtypes and bytes of the leaves. A line for each object
says the library, the object, its leaves, and "agrees" or what differs, which is also the first error of `check`: the
objects are healthy. The exit status is 1 if any differs. A library that is not installed, or that has changed its
functions, is skipped. To have all, in an environment of their own:

    uv pip install -c .ci/constraints.txt blackjax brax chex coordax diffrax distrax dm-haiku dynamax e3nn-jax evosax
    uv pip install -c .ci/constraints.txt flowjax gpjax jaxlie jaxopt jmp jraph keras lineax mctx numpyro optax
    uv pip install -c .ci/constraints.txt optimistix orbax-checkpoint ott-jax paramax quax rlax tfp-nightly
    uv pip install -c .ci/constraints.txt cola-ml distreqx flashbax flowMC gymnax interpax jax-md pgx qdax quadax
    uv pip install -c .ci/constraints.txt sympy2jax tinygp traceax
"""

from __future__ import annotations

import argparse
import inspect
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import more_objects

import treeviz

PARAMS = {"dense": {"b": jnp.zeros(3), "w": jnp.ones((2, 3))}}
KEY = jax.random.key(0)


def log_density(x):
    return -jnp.sum(x**2)


def blackjax():
    import blackjax

    hmc = blackjax.hmc(log_density, 1e-1, jnp.ones(2), 2)
    yield "HMC state", (state := hmc.init(jnp.ones(2)))
    yield "HMC info", hmc.step(KEY, state)[1]
    yield "sampling algorithm", hmc


def brax():
    from brax import envs
    from brax.training.acme import running_statistics, specs

    env = envs.get_environment("inverted_pendulum")
    yield "system", env.sys
    yield "environment state", jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    yield "running statistics", running_statistics.init_state(specs.Array((3,), jnp.dtype("float32")))


def chex():
    import chex

    yield "array dimensions", chex.Dimensions(B=3, T=5)

    @chex.dataclass
    class State:
        weights: jax.Array
        count: int

    yield "dataclass", State(weights=jnp.ones(2), count=0)


def coordax():
    import coordax

    axes = coordax.SizedAxis("x", 4), coordax.LabeledAxis("y", jnp.arange(3.0))
    yield "field", coordax.field(jnp.ones((4, 3)), *axes)


def diffrax():
    import diffrax

    term = diffrax.ODETerm(lambda t, y, args: -y)
    yield "term", term
    yield "step size controller", diffrax.PIDController(1e-3, 1e-6)
    yield "Brownian path", diffrax.VirtualBrownianTree(0.0, 1.0, 1e-3, (2,), KEY)
    yield "solution", diffrax.diffeqsolve(term, diffrax.Euler(), 0.0, 1.0, 0.5, jnp.ones(2))


def distrax():
    import distrax

    normal = distrax.Normal(jnp.zeros(2), jnp.ones(2))
    yield "distribution", normal
    yield "mixture", distrax.MixtureSameFamily(distrax.Categorical(logits=jnp.zeros(2)), normal)
    yield "chain of bijectors", distrax.Chain([distrax.Tanh(), distrax.ScalarAffine(0.0, 2.0)])


def dynamax():
    from dynamax.linear_gaussian_ssm import LinearGaussianSSM

    params, properties = LinearGaussianSSM(2, 3).initialize(jax.random.PRNGKey(0))
    yield "parameters", params
    yield "properties of parameters", properties


def e3nn_jax():
    import e3nn_jax

    yield "array with irreps", e3nn_jax.IrrepsArray("2x0e + 1x1o", jnp.ones((4, 5)))
    yield "spherical signal", e3nn_jax.SphericalSignal(jnp.ones((4, 5)), "soft")


def evosax():
    from evosax.algorithms import CMA_ES

    strategy = CMA_ES(8, jnp.zeros(3))
    yield "parameters", strategy.default_params
    yield "state", jax.eval_shape(strategy.init, KEY, jnp.zeros(3), strategy.default_params)


def flowjax():
    from flowjax import distributions, flows

    normal = distributions.Normal(jnp.zeros(2))
    yield "distribution", normal
    yield "autoregressive flow", flows.masked_autoregressive_flow(KEY, base_dist=normal, flow_layers=2, nn_width=4)


def gpjax():
    import gpjax

    x = jnp.linspace(0, 1, 4)[:, None]
    prior = gpjax.gps.Prior(mean_function=gpjax.mean_functions.Zero(), kernel=gpjax.kernels.RBF())
    yield "data set", gpjax.Dataset(X=x, y=jnp.sin(x))
    yield "posterior", prior * gpjax.likelihoods.Gaussian()


def haiku():
    import haiku

    net = haiku.transform_with_state(lambda x: haiku.nets.ResNet18(10)(x, is_training=True))
    yield "ResNet variables", jax.eval_shape(net.init, KEY, jnp.ones((1, 32, 32, 3)))
    yield "transformed function", net
    yield "LSTM state", haiku.LSTMState(jnp.ones(2), jnp.ones(2))


def jaxlie():
    import jaxlie

    yield "rigid motion", jaxlie.SE3.identity()


def jaxopt():
    import jaxopt

    solver = jaxopt.LBFGS(log_density, history_size=2)
    yield "L-BFGS state", jax.eval_shape(solver.init_state, jnp.ones(2))
    yield "optimization step", jaxopt.OptStep(jnp.ones(2), solver)


def jmp():
    import jmp

    yield "policy", jmp.get_policy("params=float32,compute=float16,output=float32")
    yield "loss scale", jmp.DynamicLossScale(jnp.float32(2.0**15))


def jraph():
    import jraph

    arrays = {"senders": jnp.array([0, 1]), "receivers": jnp.array([1, 0]), "n_node": jnp.array([2])}
    graph = jraph.GraphsTuple({"x": jnp.ones((2, 4))}, None, globals=None, n_edge=jnp.array([2]), **arrays)
    yield "graph", graph
    yield "batch of graphs", jraph.batch([graph, graph])


def keras():
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    yield "model", model
    yield "variables", model.trainable_variables
    yield "state tree", model.get_state_tree()


def lineax():
    import lineax

    matrix = lineax.MatrixLinearOperator(jnp.eye(2), lineax.positive_semidefinite_tag)
    yield "operator", matrix
    yield "sum of operators", matrix + lineax.DiagonalLinearOperator(jnp.ones(2))
    yield "solution", lineax.linear_solve(matrix, jnp.ones(2), lineax.Cholesky())


def mctx():
    import mctx

    root = mctx.RootFnOutput(prior_logits=jnp.zeros((1, 2)), value=jnp.zeros(1), embedding=jnp.zeros(1))
    yield "root", root
    one = jnp.ones(1)
    output = mctx.RecurrentFnOutput(reward=one, discount=one, prior_logits=jnp.zeros((1, 2)), value=one)
    policy = lambda: mctx.muzero_policy((), KEY, root, lambda params, key, action, state: (output, state), 2)
    yield "policy and search tree", jax.eval_shape(policy)


def numpyro():
    import numpyro
    from numpyro import distributions, infer

    def model(x):
        w = numpyro.sample("w", distributions.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", distributions.Normal(w.sum(), 1.0), obs=x)

    svi = infer.SVI(model, infer.autoguide.AutoNormal(model), numpyro.optim.Adam(1e-3), infer.Trace_ELBO())
    yield "SVI state", svi.init(KEY, 1.0)
    yield "NUTS state", infer.NUTS(model).init(KEY, 1, model_args=(1.0,))
    yield "distribution", distributions.Normal(jnp.zeros(2), jnp.ones(2)).to_event(1)
    yield "transformed distribution", distributions.LogNormal(jnp.zeros(2), 1.0)
    yield "constraint", distributions.constraints.interval(0.0, 1.0)


def optax():
    from optax import contrib

    for name in ("muon", "prodigy", "schedule_free_adamw", "dadapt_adamw", "momo", "cocob"):
        yield f"{name} state", getattr(contrib, name)(learning_rate=1e-3).init(PARAMS)


def optimistix():
    import optimistix

    yield "solver", optimistix.BFGS(1e-3, 1e-3)
    yield "solution", optimistix.root_find(lambda y, args: y - 1.0, optimistix.Newton(1e-3, 1e-3), jnp.zeros(2))


def orbax():
    import orbax.checkpoint as checkpoint

    yield "restore arguments", checkpoint.checkpoint_utils.construct_restore_args(PARAMS)
    with tempfile.TemporaryDirectory() as folder, checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{folder}/run", PARAMS)
        checkpointer.wait_until_finished()
        metadata = checkpointer.metadata(f"{folder}/run")
        yield "metadata of a checkpoint", getattr(metadata, "item_metadata", metadata)  # which treeviz opens
        yield "metadata of arrays", metadata.item_metadata.tree


def ott():
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem

    cloud = pointcloud.PointCloud(jnp.ones((3, 2)), jnp.zeros((4, 2)))
    yield "geometry", cloud
    yield "linear problem", linear_problem.LinearProblem(cloud)


def paramax():
    import paramax

    yield "positive parameter", paramax.Parameterize(jnp.exp, jnp.zeros(2))
    yield "frozen parameter", paramax.NonTrainable(PARAMS)
    yield "weight normalization", paramax.WeightNormalization(jnp.ones((2, 3)))


def quax():
    from quax.examples import lora, named, unitful

    i, j = named.Axis(2), named.Axis(3)
    yield "named array", named.NamedArray(jnp.ones((2, 3)), (i, j))
    yield "quantity with a unit", unitful.Unitful(jnp.ones(3), {unitful.meters: 1, unitful.seconds: -2})
    yield "LoRA weight", lora.LoraArray(jnp.ones((4, 3)), rank=2, key=KEY)


def rlax():
    import rlax

    yield "statistics of PopArt", rlax.popart(3, 1e-1, 1e-4, 1e6)[0]()


MODULES = globals(), vars(more_objects)
LIBRARIES = [each for module in MODULES for each in list(module.values()) if inspect.isgeneratorfunction(each)]


def made_by(library) -> Iterator[tuple[str, Any]]:
    """The objects and what they are; says why there are no more."""
    try:
        yield from library()
    except Exception as error:  # another release may want other arguments
        print(f"{library.__name__:<23} skipped: {type(error).__name__}: {str(error).partition(chr(10))[0]}", flush=True)


def leaf_facts(path: tuple, leaf: Any) -> tuple:
    """The key path, and of what has a shape and a dtype the shape, the dtype and the bytes."""
    keystr = jax.tree_util.keystr(path)
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        return (keystr,)
    itemsize = dtype.itemsize if hasattr(dtype, "itemsize") else jnp.dtype(dtype).itemsize
    return keystr, tuple(shape), str(dtype), math.prod(shape) * itemsize


def difference(tree: Any) -> tuple[int, str]:
    """The number of leaves that JAX finds, and where treeviz says something else, or ""."""
    expected = [leaf_facts(path, leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]
    rows = list(treeviz.walk(tree).leaves)
    if len(rows) != len(expected):
        return len(expected), f"treeviz finds {len(rows)} leaves"
    for row, facts in zip(rows, expected, strict=True):
        found = (row.keystr, row.shape, row.dtype, row.facts.bytes)[: len(facts)]
        if found != facts:
            return len(expected), f"JAX has {facts}, treeviz {found}"
    return len(expected), ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("libraries", nargs="*", help="those to compare; all if none is named")
    parser.add_argument("--show", nargs="?", type=int, const=80, metavar="WIDTH", help="print the trees, too")
    asked = parser.parse_args()
    n_objects = n_different = 0
    for library in LIBRARIES:
        if asked.libraries and library.__name__ not in asked.libraries:
            continue
        for what, tree in made_by(library):
            n_leaves, differs = difference(tree)
            errors = [str(finding) for finding in treeviz.check(tree, values=True) if finding.level == "error"]
            differs = differs or "".join(errors[:1])  # these objects are healthy
            n_objects, n_different = n_objects + 1, n_different + bool(differs)
            print(f"{library.__name__:<23} {what:<25} {n_leaves:>4}  {differs or 'agrees'}", flush=True)
            if asked.show:
                print(treeviz.render(tree, name="x").text(width=asked.show), end="\n\n", flush=True)
    print(f"{n_objects} objects, {n_different} differ")
    return int(n_different > 0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # what the libraries say of each other
    sys.exit(main())
