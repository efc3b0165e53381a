"""Describe: walk a pytree once into a table with one row per node."""

from collections.abc import Callable

library_loaders: list[Callable[[], None]] = []  # run before a walk: they import what is known of the libraries in use
