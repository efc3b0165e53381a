"""Describe: walk a pytree once into a table with one row per node."""
