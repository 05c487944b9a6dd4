"""Training and inference on one board: problems, search strategies and execution."""
