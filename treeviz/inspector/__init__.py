"""GradientInspector and its views, also of a run in progress."""
