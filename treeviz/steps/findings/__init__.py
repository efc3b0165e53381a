"""Problems in a history."""
