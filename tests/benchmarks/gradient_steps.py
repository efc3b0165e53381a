"""Steps whose gradients are looked at in every way that there is: treeviz's four, and what people do without it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from published_steps import Step

import treeviz as tv
from treeviz.steps.recording.recorder import LARGE_BATCH
from treeviz.steps.statistics import HISTOGRAM, LIGHT
from treeviz.steps.tracing.instrumented import instrumented
from treeviz.steps.tracing.jitted import jit_options

RATE = 1e-4


class Model(NamedTuple):
    """What is trained.

    Attributes:
      loss: (params, x, y) -> scalar.
      make: Gives the parameters, which are made once.
    """

    loss: Callable
    make: Callable[[], Any]
    data: Callable[[], tuple]


class Run(NamedTuple):
    """A variant that is ready to run.

    Attributes:
      start: What the first step is given; the same arrays in all variants of a step.
      step: Gives what the next step is given.
      read: Reads all numbers that were measured, and waits for them.
      n_together: How many measurements a run reads together.
    """

    start: Any
    step: Callable[[Any], Any]
    read: Callable[[], Any]
    n_together: Callable[[], int] = lambda: LARGE_BATCH


def _n_together(inspector: tv.GradientInspector) -> Callable[[], int]:
    return lambda: inspector._recorder._pace.batch


# Models


def _mlp_loss(params, x, y):
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["weights"] + layer["biases"])
    return jnp.mean((x @ last["weights"] + last["biases"] - y) ** 2)


@cache
def _mlp_params():
    rng = np.random.default_rng(0)
    return [
        {
            "weights": jnp.asarray(rng.normal(size=(n_in, n_out)) * np.sqrt(2 / n_in), jnp.float32),
            "biases": jnp.ones(n_out),
        }
        for n_in, n_out in itertools.pairwise([1, 128, 128, 1])
    ]


def _mlp_data():
    x = np.random.default_rng(1).normal(size=(128, 1)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(x**2)


class Sizes(NamedTuple):
    """Of a transformer: those of 15 million parameters."""

    width: int = 384
    n_layers: int = 7
    n_heads: int = 6
    vocabulary: int = 7000
    length: int = 64


def transformer(sizes: Sizes = Sizes()) -> Model:  # noqa: B008
    return Model(
        partial(_transformer_loss, sizes.n_heads),
        partial(_transformer_params, sizes),
        partial(_transformer_data, sizes),
    )


@cache
def _transformer_params(sizes):
    width, rng = sizes.width, np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(0.02 * rng.normal(size=shape), jnp.float32)

    def block():
        return {
            "norm1": jnp.ones(width),
            "norm2": jnp.ones(width),
            "qkv": normal(width, 3 * width),
            "qkv_bias": jnp.zeros(3 * width),
            "out": normal(width, width),
            "up": normal(width, 4 * width),
            "up_bias": jnp.zeros(4 * width),
            "down": normal(4 * width, width),
            "down_bias": jnp.zeros(width),
        }

    blocks = [block() for _ in range(sizes.n_layers)]
    return {
        "tokens": normal(sizes.vocabulary, width),
        "places": normal(sizes.length, width),
        "blocks": blocks,
        "norm": jnp.ones(width),
    }


def _normed(x, scale):
    return scale * (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def _transformer_loss(n_heads, params, x, y):
    h = params["tokens"][x] + params["places"]
    for block in params["blocks"]:
        q, k, v = jnp.split(_normed(h, block["norm1"]) @ block["qkv"] + block["qkv_bias"], 3, axis=-1)
        q, k, v = (z.reshape(*z.shape[:2], n_heads, -1) for z in (q, k, v))
        h = h + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(h.shape) @ block["out"]
        up = jax.nn.gelu(_normed(h, block["norm2"]) @ block["up"] + block["up_bias"])
        h = h + up @ block["down"] + block["down_bias"]
    logits = _normed(h, params["norm"]) @ params["tokens"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def _transformer_data(sizes):
    tokens = np.random.default_rng(1).integers(0, sizes.vocabulary, (4, sizes.length + 1))
    return jnp.asarray(tokens[:, :-1]), jnp.asarray(tokens[:, 1:])


@cache
def _small_params():
    rng = np.random.default_rng(0)
    return {f"leaf{i}": jnp.asarray(rng.normal(size=32), jnp.float32) for i in range(1000)}


def _small_loss(params, x, y):
    return sum(jnp.mean((x * p - y) ** 2) for p in params.values())


def _small_data():
    return jnp.linspace(0.0, 1.0, 32), jnp.linspace(1.0, 0.0, 32)


@cache
def _stack_params():
    rng = np.random.default_rng(0)
    return {f"leaf{i}": jnp.asarray(rng.normal(size=(126, 32, 32)) / 40, jnp.float32) for i in range(12)}


def _stack_loss(params, x, y):
    def layer(h, leaves):
        return h + sum(jnp.tanh(h @ leaf) for leaf in leaves.values()), None

    return jnp.mean((jax.lax.scan(layer, x, params)[0] - y) ** 2)


def _stack_data():
    x = np.random.default_rng(1).normal(size=(64, 32)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(x[:, ::-1])


MODELS = {
    "mlp": Model(_mlp_loss, _mlp_params, _mlp_data),
    "transformer": transformer(),
    "1,000 leaves": Model(_small_loss, _small_params, _small_data),
    "126 layers": Model(_stack_loss, _stack_params, _stack_data),
}

# Ways to look


@cache
def _update(model: Model) -> Callable:
    @jax.jit
    def update(params, x, y):
        grads = jax.grad(model.loss)(params, x, y)
        return _descend(params, grads)

    return update


def _descend(params, grads):
    return jax.tree.map(lambda p, g: p - RATE * g, params, grads)


def _looping(model: Model, update: Callable, read: Callable[[], Any] = lambda: None, take=None) -> Run:
    """`update` gives the parameters; or these and what `take` takes."""
    x, y = model.data()

    def step(params):
        if take is None:
            return update(params, x, y)
        params, what = update(params, x, y)
        take(what)
        return params

    return Run(model.make(), step, read)


def program_alone(step: Callable, every: int) -> Callable:
    """Runs the program that `watch` makes of a step at every n-th call, and nothing else: nobody takes its numbers."""
    inspecting = instrumented(step.__wrapped__, jit_options(step), LIGHT)
    return _in_turn(step, every, lambda *args: inspecting(*args)[0])


def memory_of(model: Model) -> dict[str, tuple[int, int]]:
    """The temporary and output bytes of the programs of its step, as XLA reports them."""
    step, args, found = _update(model), (model.make(), *model.data()), {}
    for name, options in {
        "plain": None,
        "watch": (LIGHT, False),
        "watch, activations": (LIGHT, True),
        "in steps of heavy_every": (HISTOGRAM, False),
        "in these, activations": (HISTOGRAM, True),
    }.items():
        made = step
        if options:
            made = instrumented(step.__wrapped__, jit_options(step), options[0], activations=options[1])
        memory = made.lower(*args).compile().memory_analysis()
        found[name] = memory.temp_size_in_bytes, memory.output_size_in_bytes
    return found


def own_copy(step: Callable, every: int) -> Callable:
    """Runs a second program of the same step at every n-th call: what it costs that there are two, whatever they do."""
    again = jax.jit(lambda *args: step.__wrapped__(*args), **jit_options(step).keywords)  # another function, no cache
    return _in_turn(step, every, lambda *args: again(*args))


def _in_turn(step: Callable, every: int, other: Callable) -> Callable:
    numbers = itertools.count()
    return lambda *args: step(*args) if next(numbers) % every else other(*args)


def with_norms(step: Callable, params: Callable[[Any], Any] = lambda results: results) -> Callable:
    """As users write it: a step that also returns as many numbers, of as many leaves, as `watch` measures in it."""

    def measured(*args):
        out = step.__wrapped__(*args)
        leaves = jax.tree.leaves(params(out))
        return out, jnp.stack([jnp.stack([_norm(x), jnp.max(jnp.abs(x)), _n_nonfinite(x)]) for x in leaves])

    jitted = jax.jit(measured)
    return lambda *args: jitted(*args)[0]


def of_published(make: Callable[[], Step], every: int | None, how: str = "watch") -> Run:
    """A step of others: watched at every n-th step, its program alone, its own copy, with norms by hand, or plain."""
    of, inspector = make(), tv.GradientInspector(every=every or 1)
    if how == "by hand":
        update = with_norms(of.update, of.params)
    elif every is None:
        update = of.update
    else:
        others = {"alone": program_alone, "copy": own_copy}
        update = others[how](of.update, every) if how in others else inspector.watch(of.update)
    n = len(of.state)

    def step(state):
        state = update(*state, *of.batch)[:n]
        # Collectives of several steps at once hang on few cores.
        return jax.block_until_ready(state) if jax.device_count() > 1 else state

    return Run(of.state, step, inspector.flush, _n_together(inspector))


def plain(model: Model) -> Run:
    return _looping(model, _update(model))


def watched(
    model: Model, every: int = 1, updates: bool | None = None, exact: bool = False, activations: bool = False
) -> Run:
    inspector = tv.GradientInspector(every=every, updates=updates, activations=activations)
    run = _looping(model, inspector.watch(_update(model), exact=exact), inspector.flush)
    return run._replace(n_together=_n_together(inspector))


def watched_with_activations(model: Model) -> Run:
    return watched(model, activations=True)


def watched_every_10(model: Model) -> Run:
    return watched(model, 10)


def alone_every_10(model: Model) -> Run:
    return _looping(model, program_alone(_update(model), 10))


def own_copy_every_10(model: Model) -> Run:
    return _looping(model, own_copy(_update(model), 10))


def norms_by_hand(model: Model) -> Run:
    return _looping(model, with_norms(_update(model)))


def watched_with_updates(model: Model) -> Run:
    return watched(model, updates=True)


def watched_exact(model: Model) -> Run:
    return watched(model, exact=True)


def door_2(model: Model) -> Run:
    inspector = tv.GradientInspector()

    @jax.jit
    def update(params, x, y):
        grads = jax.grad(model.loss)(params, x, y)
        return _descend(params, grads), tv.measure(grads=grads)

    return _looping(model, update, inspector.flush, inspector.record)


def _with_optax(model: Model, optimizer, take: Callable, finish: Callable[[], Any]) -> Run:
    state = optimizer.init(model.make())

    @jax.jit
    def update(params, state, x, y):
        grads = jax.grad(model.loss)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def step(params, x, y):
        nonlocal state
        params, state = update(params, state, x, y)
        return params, state

    return _looping(model, step, finish, take)


def plain_optax(model: Model) -> Run:
    return _with_optax(model, optax.sgd(RATE), lambda _: None, lambda: None)


def door_3(model: Model) -> Run:
    inspector = tv.GradientInspector()
    optimizer = optax.chain(tv.inspect_gradients(), optax.sgd(RATE))
    return _with_optax(model, optimizer, inspector.record, inspector.flush)


def _norm(x):
    return jnp.sqrt(jnp.sum(jnp.square(x)))


def _n_nonfinite(x):
    return jnp.sum(~jnp.isfinite(x)).astype(jnp.float32)


def callback_per_leaf(model: Model) -> Run:
    norms: dict[int, Any] = {}

    @jax.jit
    def update(params, x, y):
        grads = jax.grad(model.loss)(params, x, y)
        for i, leaf in enumerate(jax.tree.leaves(grads)):
            jax.debug.callback(lambda norm, i=i: norms.__setitem__(i, float(norm)), _norm(leaf))
        return _descend(params, grads)

    return _looping(model, update, jax.effects_barrier)


def one_callback(model: Model) -> Run:
    history: list[Any] = []

    @jax.jit
    def update(params, x, y):
        grads = jax.grad(model.loss)(params, x, y)
        packed = jnp.stack([jnp.stack([_norm(g), jnp.max(jnp.abs(g))]) for g in jax.tree.leaves(grads)])
        jax.debug.callback(lambda numbers: history.append(np.asarray(numbers)), packed)
        return _descend(params, grads)

    return _looping(model, update, jax.effects_barrier)


def numpy_on_the_host(model: Model) -> Run:
    history: list[Any] = []

    @jax.jit
    def update(params, x, y):
        grads = jax.grad(model.loss)(params, x, y)
        return _descend(params, grads), grads

    def take(grads):
        history.append([np.linalg.norm(np.asarray(leaf)) for leaf in jax.tree.leaves(grads)])

    return _looping(model, update, take=take)


VARIANTS = {
    "plain": plain,
    "watch, every step": watched,
    "watch, activations": watched_with_activations,
    "watch, every 10": watched_every_10,
    "its program alone, every 10": alone_every_10,
    "its own copy, every 10": own_copy_every_10,
    "norms by hand": norms_by_hand,
    "watch, with updates": watched_with_updates,
    "watch, exact": watched_exact,
    "measure and record": door_2,
    "plain optax": plain_optax,
    "inspect_gradients, in optax": door_3,
    "callback per leaf": callback_per_leaf,
    "one callback, packed": one_callback,
    "NumPy on the host": numpy_on_the_host,
}
