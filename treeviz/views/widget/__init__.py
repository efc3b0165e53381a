"""The widget, on anywidget."""
