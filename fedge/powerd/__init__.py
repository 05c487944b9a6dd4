"""fedge-powerd: the only root process on a board; sets power modes safely and restores the state that it found."""

PROTOCOL = 1
"""Version of the wire protocol; client and daemon must agree on it."""
