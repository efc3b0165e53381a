"""What an error of JAX is about: the leaves, with their paths."""
