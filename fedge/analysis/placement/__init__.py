"""Placement of network instances on a board's accelerators."""
