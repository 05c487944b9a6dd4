"""``fedge predict train-reference`` trains once, finds it again, and says what is wrong in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from contracts.boards import MAXN, coefficients, grid
from contracts.launching import Launcher

from fedge.devices.tables.mode_table import read_mode_table
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.predictors.powertrain_reference import load_reference_network
from fedge.types import Modes

MODES = Modes(grid().knobs[::25])


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Launcher:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGE_CACHE", str(tmp_path / "cache"))
    seconds, watts = compute_step_s(coefficients(), MAXN, MODES), compute_power_w(coefficients(), MAXN, MODES)
    lines = ["cores,cpu_khz,gpu_hz,mem_hz,batch_size,time_ms,power_w"]
    for batch_size in (8, 16):
        lines += [
            f"{m.cores},{m.cpu_mhz * 1e3:.0f},{m.gpu_mhz * 1e6:.0f},{m.mem_mhz * 1e6:.0f},{batch_size},{1e3 * s},{w}"
            for m, s, w in zip(MODES, seconds * batch_size / 16, watts, strict=True)
        ]
    table = tmp_path / "board" / "train" / "net.csv"
    table.parent.mkdir(parents=True)
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Launcher(monkeypatch, capsys)


def _json(fedge: Launcher, batch_size: int = 16) -> list[dict[str, object]]:
    outcome = fedge("predict", "train-reference", "board/train/net.csv", "--batch-size", f"{batch_size}", "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_the_second_time_it_is_found(fedge):
    first, second = _json(fedge)[0], _json(fedge)[0]

    assert (first["cached"], second["cached"]) == (False, True)
    assert {name: first[name] for name in first if name not in {"cached", "train_s"}} == {
        name: second[name] for name in second if name not in {"cached", "train_s"}
    }
    assert (first["device"], first["workload"], first["batch_size"], first["rows"]) == ("board", "net", 16, len(MODES))
    assert Path(str(first["file"])).is_file()


def test_what_it_keeps_is_what_the_predictor_uses(fedge, tmp_path):
    _json(fedge)

    found = load_reference_network(read_mode_table(Path("board/train/net.csv"), batch_size=16), 0, tmp_path / "cache")

    assert found.cached
    assert np.isfinite(found.trained.predict(MODES.knobs)).all()


def test_another_batch_size_is_another_network(fedge):
    one, small = _json(fedge)[0], _json(fedge, 8)[0]

    assert one["file"] != small["file"]
    assert not small["cached"]


def test_a_person_sees_rows_errors_seconds_and_the_file(fedge, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")

    outcome = fedge("predict", "train-reference", "board/train/net.csv", "--batch-size", "16")

    assert outcome.code == 0
    assert "trained" in outcome.out
    assert str(len(MODES)) in outcome.out
    assert ".safetensors" in outcome.out


def test_a_cache_that_cannot_be_written_is_one_line(fedge, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where the folder should be", encoding="utf-8")

    outcome = fedge("predict", "train-reference", "board/train/net.csv", "--batch-size", "16")

    assert outcome.code == 2
    assert "FEDGE_CACHE" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_table_that_does_not_exist_is_one_line(fedge):
    outcome = fedge("predict", "train-reference", "nowhere.csv")

    assert outcome.code == 2
    assert "nowhere.csv" in outcome.err
