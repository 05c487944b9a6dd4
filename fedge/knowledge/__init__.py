"""Learnt models of a fleet: model files and the measurements to which they were fitted."""
