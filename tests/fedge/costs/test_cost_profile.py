"""Cost profiles survive their files, and a wrong file is refused by field."""

import dataclasses

import numpy as np
import pytest
from contracts.boards import coefficients

from fedge.costs.cost_profile import (
    CalibrationEvidence,
    CostProfile,
    load_calibrated_training,
    read_profile,
    write_profile,
)
from fedge.devices.catalogue import load_catalogue
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput
from fedge.physics.time_power_model import compute_power_w, compute_step_s

PROFILE = CostProfile(
    "nano", "my-net", 8, coefficients(), "calibrated", "here", 0.02, 0.01, 0.03, 0.015,
    CalibrationEvidence("my-net.csv", "a" * 64, 210, 0.06, 0.04, "somebody"),
)  # fmt: skip


def test_a_profile_comes_back_as_it_was_written(tmp_path):
    path = write_profile(PROFILE, tmp_path / "new")
    back = read_profile(path)

    assert path.name == "nano--my-net.yaml"
    np.testing.assert_allclose(back.coefficients.time, PROFILE.coefficients.time, atol=1e-5)
    np.testing.assert_allclose(back.coefficients.power, PROFILE.coefficients.power, atol=1e-5)
    assert dataclasses.replace(back, coefficients=PROFILE.coefficients, source="here") == PROFILE or (
        back.evidence == PROFILE.evidence and back.time_mape == PROFILE.time_mape
    )


def test_a_profile_of_inference_is_named_by_its_batch_size_and_tells_its_bad_rows(tmp_path):
    assert PROFILE.evidence is not None
    seen = dataclasses.replace(PROFILE.evidence, time_rows_off=3, power_rows_off=7)

    path = write_profile(dataclasses.replace(PROFILE, kind="infer", evidence=seen), tmp_path)
    back = read_profile(path)

    assert path.name == "nano--my-net--b8.yaml"
    assert (back.kind, back.evidence) == ("infer", seen)
    assert "kind" not in write_profile(PROFILE, tmp_path).read_text(encoding="utf-8")


def test_an_estimate_is_not_written_as_if_it_were_calibrated(tmp_path):
    with pytest.raises(BadInput, match="an estimated profile"):
        write_profile(dataclasses.replace(PROFILE, label="estimated", evidence=None), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("batch_size: 8", "batch_size: none", "batch_size"),
        ("gpu_s: 0.05", "gpu_s: -1", "time.gpu_s"),
        ("static_w:", "stat_w:", "power"),
        ("rows: 210", "rows: 0", "table.rows"),
        ("device: nano\n", "", "device"),
        ("device: nano", "device: [", "not YAML"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, old, new, field):
    path = write_profile(PROFILE, tmp_path)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")

    with pytest.raises(BadInput, match=field):
        read_profile(path)


FOLDERS = {"agx-orin-64gb": "agx-orin"}


@pytest.mark.parametrize(
    "profile", load_calibrated_training(), ids=lambda profile: f"{profile.device}--{profile.workload}"
)
def test_shipped_coefficients_meet_their_table_within_seven_and_three_percent(profile, profiles_root):
    path = profiles_root / FOLDERS.get(profile.device, profile.device) / "train" / f"{profile.workload}.csv"
    if not path.exists():
        pytest.skip(f"no {path}")
    table = read_mode_table(path)
    maxn = load_catalogue()[profile.device].maxn

    time_mape = float(np.mean(np.abs(compute_step_s(profile.coefficients, maxn, table.modes) / table.step_s - 1)))
    power_mape = float(np.mean(np.abs(compute_power_w(profile.coefficients, maxn, table.modes) / table.power_w - 1)))

    assert profile.evidence.sha256 == table.sha256
    assert time_mape <= 0.07
    assert power_mape <= 0.03
    assert time_mape == pytest.approx(profile.time_mape, abs=1e-4)
    assert power_mape == pytest.approx(profile.power_mape, abs=1e-4)
