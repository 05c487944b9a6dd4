"""What to turn next, by what was measured and by the input-pipeline model."""
