"""Statistics of the values of arrays."""
