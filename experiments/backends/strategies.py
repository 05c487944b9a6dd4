"""Checks the strategy of an experiment where Flower may be imported."""

from __future__ import annotations

from fedge.experiment import Experiment
from server.aggregation import strategy_of


def check(experiment: Experiment) -> None:
    """Build the strategy once; raises ``BadInput`` for an unknown class or option."""
    strategy_of(experiment.strategy)
