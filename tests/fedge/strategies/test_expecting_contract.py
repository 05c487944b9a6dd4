"""fedge's own strategy keeps to the contract of all strategies."""

from __future__ import annotations

import pytest
from contracts.strategy import StrategyContract

pytest.importorskip("fedge.strategies.expecting", reason="there is no strategy called fedge", exc_type=ImportError)


class TestExpecting(StrategyContract):
    name = "fedge"
    seeds = range(1)
