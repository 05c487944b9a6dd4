"""Accounting of a round: time, energy, and the rows of the store."""
