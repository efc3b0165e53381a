"""ONE FILE PER LIBRARY: what treeviz knows about other people's trees."""
