"""Costs of a network's layers: FLOP, bytes, parameters, activations, and the geometry of its convolutions."""
