"""Files of arrays as trees, one reader per format that needs no library. Only headers are read."""
