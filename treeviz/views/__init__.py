"""Show: functions from a `TreeTable` to text, HTML and files."""
