"""Studies of training and inference on one board."""
