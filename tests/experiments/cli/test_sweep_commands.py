"""``fedge sweep``: one command compares policies over seeds, and killed and started again it repeats nothing."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import yaml
from contracts.processes import wait_for
from typer.testing import CliRunner

from experiments.backends.run_processes import RUN_MARK, find_marked_processes
from experiments.cli.main import app
from fedge.errors import BadInput, RunFailed

LIMIT_S = 400.0
EXPERIMENT = {
    "rounds": 1,
    "fleet": [{"device": "nano", "count": 2}],
    "workload": {"task": "digits-cnn", "local_epochs": 0.1},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A sweep of two policies with two seeds over a small experiment."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    keys = {"experiment": "small.yaml", "grid": {"policy": ["balanced", "maxn"]}, "seeds": 2}
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(keys))
    return path


def start(config: Path, out: Path, workers: int, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.cli", "sweep", str(config), "--folder", str(out)]
    return subprocess.Popen(
        [*command, "--jobs", str(workers)],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def list_points(out: Path) -> dict[str, tuple[int, int]]:
    """The finished points, each with what changes when it is written again."""
    records = {path.parent.name: path.stat() for path in out.glob("points/[!.]*/point.json")}
    return {name: (record.st_ino, record.st_mtime_ns) for name, record in records.items()}


@pytest.mark.slow
def test_a_killed_sweep_on_ray_repeats_nothing_that_had_ended(config, tmp_path):
    out, mark, workers = tmp_path / "out", uuid.uuid4().hex, 2
    first = start(config, out, workers, **{RUN_MARK: mark})
    wait_for(lambda: list_points(out) or first.poll() is not None, "a point was written", LIMIT_S)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    ended = list_points(out)
    assert 1 <= len(ended) < 4
    wait_for(lambda: not find_marked_processes(mark), "its processes ended", LIMIT_S)

    second = start(config, out, workers)
    output, errors = second.communicate(timeout=LIMIT_S)

    assert second.returncode == 0, errors
    points = list_points(out)
    assert len(points) == 4
    assert {name: points[name] for name in ended} == ended
    assert "4 of 4 points" in output
    assert (out / "report.html").is_file()
    assert len((out / "sweep.csv").read_text().splitlines()) == 13


def test_the_summary_is_printed_as_json(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config.write_text(config.read_text().replace("seeds: 2", "seeds: [4]"))

    done = CliRunner().invoke(app, ["sweep", str(config), "--jobs", "1", "--json"])

    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary == json.loads((tmp_path / "runs" / "sweep-sweep" / "sweep.json").read_text())
    assert [variant["label"] for variant in summary["variants"]] == ["balanced", "maxn"]
    assert summary["variants"][1]["figures"]["energy_j"]["difference"]["n"] == 1


def test_a_mistake_in_a_variant_is_told_before_anything_is_written(config, tmp_path):
    config.write_text(config.read_text().replace("maxn", "maxx"))

    done = CliRunner().invoke(app, ["sweep", str(config), "--folder", str(tmp_path / "out")])

    assert isinstance(done.exception, BadInput)
    assert "sweep.yaml: maxx: policy.name: got 'maxx'" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_failed_points_are_told_at_the_end(config, tmp_path, monkeypatch):
    from experiments.sweeps import sweep_driver

    def fail(_: object) -> bytes:
        raise RunFailed("no client reported\nits log")

    monkeypatch.setattr(sweep_driver, "run_point", fail)

    done = CliRunner().invoke(app, ["sweep", str(config), "--folder", str(tmp_path / "out"), "--jobs", "1"])

    assert isinstance(done.exception, RunFailed)
    assert str(done.exception).startswith("4 of 4 points failed: balanced, seed 1: no client reported; balanced, ")
