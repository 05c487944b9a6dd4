"""The experiment's YAML: schema and checks."""
