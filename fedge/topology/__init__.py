"""Smaller networks out of a large one: channels that go together, variants that fit a board, variants in folders."""
