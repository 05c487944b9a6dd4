"""Sweeps: many runs of one experiment with other keys and seeds, and their summary."""
