"""Measure: what happens in a jitted step: sow -> reap -> record -> findings, columns, series."""
