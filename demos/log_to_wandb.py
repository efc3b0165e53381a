"""What wandb.watch does for PyTorch, for Flax: gradients and updates by layer, the loss and alerts, in charts of W&B.

    pip install wandb flax optax
    python demos/log_to_wandb.py                     # writes wandb/offline-run-…, which `wandb sync` uploads
    WANDB_MODE=online python demos/log_to_wandb.py

The model of Flax NNX and its `nnx.jit` step are as without W&B; the one line is `inspector.log_to(run)`.
"""

import os

import jax.numpy as jnp
import numpy as np
import optax
import wandb
from flax import nnx

import treeviz as tv

rng = np.random.default_rng(0)
model = nnx.Sequential(nnx.Linear(8, 32, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(32, 1, rngs=nnx.Rngs(1)))
optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return loss


inspector = tv.GradientInspector(heavy_every=20)  # every 20th step also takes histograms and the size of the updates
train_step = inspector.watch(train_step)

with wandb.init(project="treeviz", mode=os.environ.get("WANDB_MODE", "offline")) as run, inspector.log_to(run, every=5):
    for step in range(101):
        ids = rng.integers(100_000, size=16)
        x = rng.standard_normal((16, 8)).astype(np.float32)
        y = x.sum(axis=1, keepdims=True) + (30 if step == 75 else 0)
        loss = train_step(model, optimizer, x, y)
        inspector.record_scalars(loss=loss, batch=ids)
        run.log({"loss": loss})

print(inspector)
