"""Fixtures shared with other folders."""

from contracts.prediction_targets import make_table, plug_ins, table, target  # noqa: F401 - fixtures
