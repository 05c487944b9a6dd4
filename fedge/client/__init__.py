"""One client's round, on emulated and on real boards."""
