"""Profiling a board, emulated or real: which mode next, measured until settled, journaled, written as a table."""
