"""Watch gradients: the step of JAX's own documentation, unchanged, and one bad example that ruins its training.

    python demos/02_watch_gradients.py

Prints where the gradients went wrong and since when, and writes gradients.html where it runs: every leaf over the
steps, in one file that works offline.
"""

import jax
import jax.numpy as jnp
import numpy as np

import treeviz as tv

# --- From "Working with pytrees" in the documentation of JAX: an MLP whose gradients never leave the jitted step ---


def init_mlp_params(layer_widths):
    params = []
    for n_in, n_out in zip(layer_widths[:-1], layer_widths[1:]):
        params.append(
            dict(weights=np.random.normal(size=(n_in, n_out)) * np.sqrt(2 / n_in), biases=np.ones(shape=(n_out,)))
        )
    return params


def forward(params, x):
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["weights"] + layer["biases"])
    return x @ last["weights"] + last["biases"]


def loss_fn(params, x, y):
    return jnp.mean((forward(params, x) - y) ** 2)


LEARNING_RATE = 0.001


@jax.jit
def update(params, x, y):
    grads = jax.grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)


# --- The one line. Every 20th step also takes histograms, and measures how far the step moves the parameters ---

inspector = tv.GradientInspector(name="mlp", heavy_every=20)
update = inspector.watch(update)

# --- Training. In one batch an example is far from all others: a typing error in the data, say ---

np.random.seed(0)
params = init_mlp_params([1, 128, 128, 1])
for step in range(600):
    x = np.random.normal(size=(128, 1))
    if step == 400:
        x[0] = 100.0
    params = update(params, x, x**2)

# --- What happened? ---

print(inspector)
print("\nwritten:", inspector.save("gradients.html"))
