"""Characterisation of a board: a resumable sweep over its settings, and where time and energy go."""
