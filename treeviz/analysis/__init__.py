"""WHAT WE CAN SAY: functions from a `TreeTable` to columns."""
