"""A plain Flower app, made as Flower's own quickstart with PyTorch is, to compare fedge's rounds with."""
