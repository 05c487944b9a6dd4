"""``fedge memory eval`` prints and writes its errors; ``fit`` writes coefficients; bad input is one line."""

import io
import json
from pathlib import Path

import pytest
import yaml
from contracts.measured_steps import write_folder, write_network
from rich.console import Console
from typer.testing import CliRunner

from experiments.cli.network_commands import evaluate, fit, memory
from experiments.report.analysis.network_terminal import build_error_tables
from fedge.costs.memory.memory_study import MemoryErrorRow
from fedge.costs.memory.step_need import memory_calibration_from_dict
from fedge.errors import BadInput


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "steps"
    folder.mkdir()
    return write_folder(folder)


def test_the_rows_are_written_as_json(data, tmp_path):
    out = tmp_path / "errors.json"
    done = CliRunner().invoke(
        memory, ["eval", "--data", str(data), "--methods", "fedge", "--leave-network-out", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(out.read_text())
    assert {tuple(row) for row in rows} == {("method", "network", "split", "target", "mape", "n")}
    assert {(r["network"], r["split"], r["target"]) for r in rows} == {
        (network, split, target)
        for network in ("deep", "small", "wide")
        for split in ("within", "left-out")
        for target in ("memory", "latency")
    }
    for heading in ("Held-out levels", "Held-out network", "mean", "worst"):
        assert heading in done.output


def test_the_table_shows_every_error_with_mean_and_worst():
    rows = [
        MemoryErrorRow(method, network, "within", target, error, 12)
        for method, network, target, error in (
            ("perf4sight", "a", "memory", 8.0), ("fedge", "a", "memory", 1.0),
            ("perf4sight", "a", "latency", 6.0), ("fedge", "a", "latency", 3.0),
            ("perf4sight", "b", "memory", 4.0), ("fedge", "b", "memory", 2.0),
            ("perf4sight", "b", "latency", 5.0), ("fedge", "b", "latency", 7.0),
        )
    ]  # fmt: skip
    out = io.StringIO()
    for table in build_error_tables(rows):
        table.print(Console(file=out, width=100))
    lines = {line.split()[0]: line.split()[1:] for line in out.getvalue().splitlines() if line.strip()}
    assert lines["a"] == ["12", "8.0", "1.0", "6.0", "3.0"]
    assert lines["mean"] == ["6.0", "1.5", "5.5", "5.0"]
    assert lines["worst"] == ["8.0", "2.0", "6.0", "7.0"]


@pytest.mark.parametrize(
    ("method", "says"),
    [("magic", "known: perf4sight, fedge"), ("fedge,fedge", "each once"), ("", "each once"), ("fedge,", "each once")],
)
def test_a_wrong_method_is_said_in_one_line(data, method, says):
    with pytest.raises(BadInput) as caught:
        evaluate(data=data, method=method, leave_network_out=False, out=None)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_network_cannot_be_left_out(tmp_path):
    write_network(tmp_path, "only", 32, 3)
    with pytest.raises(BadInput, match="--leave-network-out: got 1 network; at least two"):
        evaluate(data=tmp_path, method="fedge", leave_network_out=True, out=None)


def test_rows_of_levels_without_a_geometry_are_told_of(data, capsys):
    with (data / "deep.csv").open("a") as file:
        file.write("deep,33,4,10,1700\n")
    evaluate(data=data, method="fedge", leave_network_out=False, out=None)
    assert "levels without a geometry: deep 1" in capsys.readouterr().err


def test_fitted_coefficients_are_a_calibration(data, tmp_path):
    out = tmp_path / "board.yaml"
    fit(data=data, out=out, board="made-up", source="a law of our own")
    found = memory_calibration_from_dict(yaml.safe_load(out.read_text()))
    assert (found.board, found.source) == ("made-up", "a law of our own")
    fit(data=data, out=out, board="made-up", source="again")  # its own earlier output may be replaced
