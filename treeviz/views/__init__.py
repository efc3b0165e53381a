"""HOW IT IS SHOWN: functions from a `TreeTable` to text, HTML and files."""
