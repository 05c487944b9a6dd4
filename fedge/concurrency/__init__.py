"""Training and inference on one board: the problems, a pair of jobs, and what a choice is worth."""
