"""A prefix laid over a tree: which spec each leaf gets."""
