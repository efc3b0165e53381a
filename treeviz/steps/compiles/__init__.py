"""What makes `jax.jit` trace or compile a step again."""
