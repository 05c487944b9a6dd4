"""Memory and time that a training step of a network needs on a board, from the geometry of its layers."""
