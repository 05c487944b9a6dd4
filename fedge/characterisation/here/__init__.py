"""Characterising the machine at hand: every point in a process of its own, the machine watched from beside."""

from fedge.characterisation.here.rig import rig_here

__all__ = ["rig_here"]
