"""Analyse: functions from a `TreeTable` to columns."""
