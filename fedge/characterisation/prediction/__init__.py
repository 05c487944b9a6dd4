"""What an epoch would take in modes and with loaders that were not measured."""
