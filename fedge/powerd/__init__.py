"""fedge-powerd: the one root process on a board; sets power modes safely and puts back what it found."""

PROTOCOL = 1
"""The wire's version: client and daemon must have the same."""
