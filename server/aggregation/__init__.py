"""Aggregation: strategies, and the weighting of results."""
