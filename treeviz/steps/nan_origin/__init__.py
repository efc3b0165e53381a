"""The origin of a NaN."""
