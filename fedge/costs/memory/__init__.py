"""What a training step needs: memory and time of a network on a board, from the geometry of its layers."""
