"""See a model: four libraries, one call.

    python demos/01_see_a_model.py

Prints some trees, and writes two files where it runs: model.html, which works offline, and model.svg.
"""

import jax
import jax.numpy as jnp

import treeviz as tv

key = jax.random.key(0)

# --- Equinox: the model itself is a pytree; static fields and the activation function are part of it ---
try:
    import equinox as eqx

    mlp = eqx.nn.MLP(in_size=4, out_size=2, width_size=8, depth=2, key=key)
    print(tv.render(mlp, name="mlp"), "\n")
except ImportError:
    print("Equinox is not installed: pip install equinox\n")

# --- Flax Linen: parameters in nested dicts; here one is boxed with the names of its mesh axes ---
try:
    from flax import linen

    init = linen.with_partitioning(linen.initializers.lecun_normal(), (None, "model"))
    network = linen.Sequential([linen.Dense(8, kernel_init=init), linen.relu, linen.Dense(2)])
    variables = network.init(key, jnp.ones((1, 4)))
    print(tv.render(variables, name="variables"), "\n")
except ImportError:
    print("Flax is not installed: pip install flax\n")

# --- Flax NNX: modules hold Variables, each with its kind ---
try:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(4, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

    print(tv.render(Net(nnx.Rngs(0)), name="net"), "\n")
except ImportError:
    print("Flax is not installed: pip install flax\n")

# --- A train state: parameters and what optax remembers of each of them ---
params = {"layers": [{"w": jax.random.normal(k, (64, 64)), "b": jnp.zeros(64)} for k in jax.random.split(key, 4)]}
try:
    import optax

    state = {"params": params, "opt_state": optax.adamw(1e-3).init(params), "step": 0}
except ImportError:
    print("optax is not installed: pip install optax\n")
    state = {"params": params, "step": 0}

view = tv.render(state, name="state", stats=True, columns=["bytes", "rms", "zeros", "nan"])
print(view, "\n")

# --- Find rows as in the page's search box; each knows the Python expression that leads to it ---
for row in view.find("params w shape:64,64"):
    print(row.expression, row.dtype, row.shape)

# --- Take it with you ---
print("\nWrote", view.save("model.html"), "and", view.save("model.svg"))
