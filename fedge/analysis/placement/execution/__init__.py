"""Execution of a placement on this machine."""
