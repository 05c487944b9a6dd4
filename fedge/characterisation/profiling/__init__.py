"""Profiling of boards, emulated or real: choose modes, measure each until it has settled, and write a table."""
