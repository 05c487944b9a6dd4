"""What a network's layers hold: FLOP, bytes, parameters, activations, and the geometry of its convolutions."""
