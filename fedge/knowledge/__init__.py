"""What a fleet learnt: model files and the measurements they were fitted to."""
