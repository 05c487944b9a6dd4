"""A plain Flower app, like Flower's own quickstart with PyTorch, as the baseline for fedge's rounds."""
