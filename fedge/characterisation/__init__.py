"""Characterising a board: a resumable sweep over what can be set, where the time and the energy go, and why."""
