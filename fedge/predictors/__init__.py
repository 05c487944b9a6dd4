"""Predictors of step time and power, by name."""

from __future__ import annotations

PREDICTORS = {"physical": "fedge.predictors.physical:PhysicalPredictor"}
"""Name in an experiment -> where it lies; each takes the prior's coefficients and the board's MAXN."""
