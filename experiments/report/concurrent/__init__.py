"""What training and inference on one board come to, for a terminal."""
