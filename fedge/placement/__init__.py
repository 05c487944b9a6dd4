"""Placement of inference: which instances of a network run on which of a board's accelerators, and what comes of it."""
