"""Channel-pruned variants of a network that fit a board."""
