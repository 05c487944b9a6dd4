"""fedge-worker: the resident trainer under the board's own Python and torch; importing this loads neither."""

PROTOCOL = 1
"""The wire's version: client and worker must have the same."""
