"""Runs and comparisons on disk."""
