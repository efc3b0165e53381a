"""The step as a program: measured without changing it."""
