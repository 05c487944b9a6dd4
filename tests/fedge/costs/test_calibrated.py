"""The shipped coefficients, held against every row of the tables they were fitted to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedge.costs.cost_profile import CostProfile, load_calibrated_training
from fedge.devices.catalogue import load_catalogue
from fedge.devices.tables.mode_table import read_mode_table
from fedge.physics.time_power_model import compute_power_w, compute_step_s

FOLDERS = {"agx-orin-64gb": "agx-orin"}


@pytest.mark.parametrize(
    "profile", load_calibrated_training(), ids=lambda profile: f"{profile.device}--{profile.workload}"
)
def test_shipped_coefficients_meet_their_table_within_seven_and_three_percent(
    profile: CostProfile, profiles_root: Path
) -> None:
    path = profiles_root / FOLDERS.get(profile.device, profile.device) / "train" / f"{profile.workload}.csv"
    if not path.exists():
        pytest.skip(f"no {path}")
    table = read_mode_table(path)
    maxn = load_catalogue()[profile.device].maxn

    time_mape = float(np.mean(np.abs(compute_step_s(profile.coefficients, maxn, table.modes) / table.step_s - 1)))
    power_mape = float(np.mean(np.abs(compute_power_w(profile.coefficients, maxn, table.modes) / table.power_w - 1)))

    assert profile.evidence is not None
    assert profile.evidence.sha256 == table.sha256
    assert time_mape <= 0.07
    assert power_mape <= 0.03
    assert time_mape == pytest.approx(profile.time_mape, abs=1e-4)
    assert power_mape == pytest.approx(profile.power_mape, abs=1e-4)
