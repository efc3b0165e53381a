"""The details of one row, for the explorer."""
