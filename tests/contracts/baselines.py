"""What the tests of predictors without a prior share: a made-up board's truth, and errors on measured tables."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, grid
from contracts.predictor import measured

from fedge.devices.tables.mode_table import read_mode_table
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.protocols import Predictor
from fedge.types import Floats, Modes, ProfileTable

TRUTH = another_workload(np.random.default_rng(9))


class MadeUpBoard:
    """Fixtures of a predictor's contract: 38 modes of a made-up board."""

    @pytest.fixture
    def modes(self) -> Modes:
        return Modes(grid().knobs[::17])

    @pytest.fixture
    def step_s(self, modes: Modes) -> Floats:
        return compute_step_s(TRUTH, MAXN, modes)

    @pytest.fixture
    def power_w(self, modes: Modes) -> Floats:
        return compute_power_w(TRUTH, MAXN, modes)


def real_table(root: Path, board: str, workload: str) -> ProfileTable:
    return read_mode_table(root / board / "train" / f"{workload}.csv")


def mape(
    make: Callable[[PriorKnowledge], Predictor],
    table: ProfileTable,
    count: int,
    seeds: range,
    references: tuple[ProfileTable, ...] = (),
) -> tuple[float, float]:
    """Mean over seeds of the relative error of time and power, on the modes beside ``count`` random ones."""
    errors = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(table.modes))
        predictor = make(PriorKnowledge(table.maxn, references=references, seed=seed))
        predictor.fit(measured(table.modes, table.step_s, table.power_w, list(order[:count])))
        held = order[count:]
        said = predictor.predict(Modes(table.modes.knobs[held]))
        errors.append([
            np.mean(np.abs(said.step_s / table.step_s[held] - 1)),
            np.mean(np.abs(said.power_w / table.power_w[held] - 1)),
        ])  # fmt: skip
    time_mape, power_mape = np.mean(errors, axis=0)
    return float(time_mape), float(power_mape)
