"""Strategies and the weighting of results."""
