"""fedge-worker: the resident trainer process, run by the board's own Python and torch; importing this loads neither."""

import struct

PROTOCOL = 1
"""Version of the wire protocol; client and worker must agree on it."""

LAST_EXIT = ".exit"
"""Suffix of the socket path that names the exit file: why the last trainer ended, and at which monotonic second."""

MAGIC = b"FDGW"
PREFIX = struct.Struct("<4sIQ")
"""The beginning of a frame: ``MAGIC``, the header's length and the body's; see ``fedge.worker.frames``."""
