"""``fedge calibrate`` fits tables, writes their profiles and says how good they are."""

from pathlib import Path

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, grid

from fedge.analysis.cost_calibration import calibrate_tables
from fedge.costs.cost_profile import read_profile
from fedge.devices.tables.mode_table import TABLE_COLUMNS
from fedge.errors import BadInput
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import PowerMode


def _write(path: Path, seed: int, sizes: tuple[int, ...] = (16,)) -> Path:
    truth, modes = another_workload(np.random.default_rng(seed)), grid()
    rows = [
        f"{c:g},{f * 1e3:g},{g * 1e6:.0f},{m * 1e6:.0f},{size},{t * 1e3 * size / 16},{w}"
        for size in sizes
        for (c, f, g, m), t, w in zip(
            modes.knobs, compute_step_s(truth, MAXN, modes), compute_power_w(truth, MAXN, modes), strict=True
        )
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(TABLE_COLUMNS), *rows]), encoding="utf-8")
    return path


def test_every_table_gets_a_file_and_a_row(tmp_path):
    tables = [_write(tmp_path / "my-board" / "train" / f"net{i}.csv", i) for i in (1, 2)]

    results = calibrate_tables(tables, folder=tmp_path / "out")

    assert [Path(r.written or "").name for r in results] == ["my-board--net1.yaml", "my-board--net2.yaml"]
    assert all(r.time_mape < 0.005 and r.power_mape < 0.005 and r.rows == len(grid()) for r in results)
    assert read_profile(Path(results[0].written or "")).workload == "net1"


def test_a_folder_name_of_the_tables_becomes_the_catalogues(tmp_path):
    (result,) = calibrate_tables([_write(tmp_path / "agx-orin" / "train" / "n.csv", 4)], folder=tmp_path, maxn=MAXN)

    assert result.device == "agx-orin-64gb"
    assert read_profile(tmp_path / "agx-orin-64gb--n.yaml").device == "agx-orin-64gb"


def test_a_boards_own_top_may_lie_above_the_tables(tmp_path):
    path = _write(tmp_path / "b" / "train" / "n.csv", 5)

    (result,) = calibrate_tables([path], maxn=PowerMode(16, 4000.0, 2400.0, 6000.0))

    assert result.time_mape < 0.01


def test_one_workload_name_does_not_fit_two_tables(tmp_path):
    with pytest.raises(BadInput, match="--workload: got 2 tables"):
        calibrate_tables([tmp_path / "a.csv", tmp_path / "b.csv"], workload="x")


def test_two_tables_of_one_name_are_refused_before_anything_is_written(tmp_path):
    tables = [_write(tmp_path / folder / "b" / "train" / "n.csv", 1) for folder in ("x", "y")]

    with pytest.raises(BadInput, match=r"two tables for b--n\.yaml"):
        calibrate_tables(tables, folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_table_of_inference_gets_a_file_per_batch_size(tmp_path):
    table = _write(tmp_path / "my-board" / "infer" / "net.csv", 1, (1, 4, 16))

    results = calibrate_tables([table], folder=tmp_path / "out")

    assert [(r.kind, r.batch_size) for r in results] == [("infer", 1), ("infer", 4), ("infer", 16)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "my-board--net--b1.yaml",
        "my-board--net--b16.yaml",
        "my-board--net--b4.yaml",
    ]
    for result in results:
        profile = read_profile(Path(result.written or ""))
        assert (profile.kind, profile.batch_size) == ("infer", result.batch_size)
        assert max(result.time_mape, result.power_mape) < 0.015


def test_the_kind_can_be_said_where_the_path_does_not_tell(tmp_path):
    table = _write(tmp_path / "net.csv", 1, (1, 4))

    assert [r.kind for r in calibrate_tables([table], board="b", kind="infer")] == ["infer", "infer"]
    with pytest.raises(BadInput, match="choose one with --batch-size"):
        calibrate_tables([table], board="b", kind="train")
    with pytest.raises(BadInput, match="choose one with --batch-size"):
        calibrate_tables([table], board="b")


def test_a_batch_size_with_too_few_modes_is_named(tmp_path):
    table = _write(tmp_path / "b" / "infer" / "net.csv", 1, (1, 4))
    lines = table.read_text(encoding="utf-8").splitlines()
    table.write_text("\n".join(lines[: len(grid()) + 6]), encoding="utf-8")

    with pytest.raises(BadInput, match="5 power modes at batch size 4; at least 20"):
        calibrate_tables([table], folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()
