"""Files of arrays as trees, one reader per format. By default only headers are read."""
