"""fedge-worker: the resident trainer under the board's own Python and torch; importing this loads neither."""

PROTOCOL = 1
"""The wire's version: client and worker must have the same."""

LAST_EXIT = ".exit"
"""After the socket's path: the file in which the supervisor says why a trainer ended, at which monotonic second."""
