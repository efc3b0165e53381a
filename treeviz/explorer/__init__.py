"""The backend of explore()."""
