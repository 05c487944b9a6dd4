"""Reads a run's rows back."""

from __future__ import annotations

from fedge.telemetry.store import read_rows

__all__ = ["read_rows"]
