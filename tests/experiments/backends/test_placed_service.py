"""A plan of ``fedge place`` is a board's standing service: its batch, its seconds and its watts, or a line why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from contracts.launching import Launcher

pytest.importorskip("torch", reason="boards really train")

from experiments.backends.local_backend import run_local
from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.client.emulated import load_client
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow

DEVICE = "agx-orin-64gb"


def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: Path, *words: str) -> Path:
    command = ("place", "resnet50", "--device", DEVICE, "--rate", "40", *words, "--json", str(out))
    done = Launcher(monkeypatch, capsys)(*command)
    assert done.code == 0, done.err
    return out


@pytest.fixture
def placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    return plan(monkeypatch, capsys, tmp_path / "plan.json", "--on", "tensor-cores", "--batches", "4")


def load(folder: Path, device: str = DEVICE, backend: str = "local", **serving: object) -> Experiment:
    entry = {"device": device, "serving": {"placement": "plan.json", "latency_s": 2.0, **serving}}
    content = {"fleet": [entry], "rounds": 1, "backend": backend, "jobs": 1, "workload": {"local_epochs": 0.5}}
    (folder / "exp.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_experiment(folder / "exp.yaml")


def test_the_service_has_the_plans_batch_seconds_and_watts_and_says_where_they_come_from(
    placed: Path, tmp_path: Path
) -> None:
    chosen = json.loads(placed.read_text())["chosen"]
    experiment = load(tmp_path)
    client = load_client(experiment, 0)

    assert client.serving is not None
    average, top = client.serving.average, client.surface.find_row(client.setup.fastest_mode)
    assert (client.serving.spec.rate_hz, average.batch_sizes) == (40.0, (4,))
    assert average.infer_s[top, 0] == pytest.approx(chosen["instances"][0]["batch_s"])
    idle_w, share = client.kind.spec.idle_w.value, 40.0 / chosen["images_per_s"]
    assert idle_w + share * (average.power_w[top, 0] - idle_w) == pytest.approx(chosen["power_w"])
    assert average.infer_s[:, 0].max() > 2 * average.infer_s[top, 0]
    label = experiment_checks.build_labels(experiment, set())[DEVICE]["serving"]
    assert label["label"] == "estimated"
    assert "a batch on tensor-cores (mixed) at MAXN" in label["source"]

    (tmp_path / "run").mkdir()
    experiment_checks.check_experiment(experiment)
    run_local(experiment, tmp_path / "run", lambda: None)
    (row,) = read_rows(tmp_path / "run", ClientRow)
    assert (row.status, row.service_batch) == ("done", 4)


def test_a_saved_run_needs_no_plan_and_another_plan_replaces_it(
    placed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "run.yaml"
    saved.write_text(yaml.safe_dump(load(tmp_path).model_dump(mode="json")), encoding="utf-8")
    placed.rename(tmp_path / "gone.json")
    assert load_experiment(saved).fleet == load_experiment(saved).fleet
    plan(monkeypatch, capsys, tmp_path / "other.json", "--on", "cuda-cores", "--batches", "8")

    serving = load_experiment(saved, [f"fleet.0.serving.placement={tmp_path / 'other.json'}"]).fleet[0].serving
    assert serving is not None
    assert serving.placed is not None
    assert (serving.batch_sizes, serving.placed.accelerator) == ((8,), "cuda-cores")


def test_a_plan_that_works_beside_the_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(monkeypatch, capsys, tmp_path / "plan.json", "--on", "dla-0")
    with pytest.raises(BadInput, match=r"fleet\[0\]\.serving\.placement: got .*with dla-0; one instance on the GPU"):
        load(tmp_path)
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BadInput, match=r"fleet\[0\]\.serving\.placement: .*fedge place"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"device": "agx-xavier"}, "a plan for agx-orin-64gb"), ({"backend": "fleet"}, "--on cuda-cores")],
)
def test_a_plan_of_another_board_or_accelerator_is_refused(
    changed: dict[str, str], told: str, placed: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=rf"fleet\[0\]\.serving\.placement: .*{told}"):
        experiment_checks.check_experiment(load(tmp_path, **changed))
