"""Several trees side by side."""
