"""Analyses of a network or a board: roofline, placement, topology, board selection."""
