"""Loading and checking of an experiment's YAML."""
