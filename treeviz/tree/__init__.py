"""WHAT IS THERE: walk a pytree once, and it becomes a table with one row per node."""
