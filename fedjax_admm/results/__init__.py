"""What a run leaves, as NumPy arrays and tables."""
