"""Simulations, one and many, from the first round to the last."""
