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
from fedge.client.inference_service import average_inference_costs
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.modes import stack_modes
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow

DEVICE = "agx-orin-64gb"


def plan(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    out: Path,
    *words: str,
    model: str = "resnet50",
    rate: str = "40",
) -> Path:
    command = ("place", model, "--board", DEVICE, "--rate-hz", rate, *words, "--out", str(out))
    done = Launcher(monkeypatch, capsys)(*command)
    assert done.code == 0, done.err
    return out


@pytest.fixture
def placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    return plan(monkeypatch, capsys, tmp_path / "plan.json", "--on", "tensor-cores", "--batch-sizes", "4")


def load(folder: Path, device: str = DEVICE, backend: str = "local", **serving: object) -> Experiment:
    entry = {"device": device, "serving": {"placement": "plan.json", "latency_s": 2.0, **serving}}
    content = {"fleet": [entry], "rounds": 1, "backend": backend, "workload": {"local_epochs": 0.5}}
    (folder / "exp.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_experiment(folder / "exp.yaml")


def test_the_service_has_the_plans_batch_seconds_and_watts_and_says_where_they_come_from(placed, tmp_path):
    chosen = json.loads(placed.read_text())["chosen"]
    experiment = load(tmp_path)
    client = load_client(experiment, 0)

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


def test_a_saved_run_needs_no_plan_and_another_plan_replaces_it(placed, tmp_path, monkeypatch, capsys):
    saved = tmp_path / "run.yaml"
    saved.write_text(yaml.safe_dump(load(tmp_path).model_dump(mode="json")), encoding="utf-8")
    placed.rename(tmp_path / "gone.json")
    assert load_experiment(saved).fleet == load_experiment(saved).fleet
    plan(monkeypatch, capsys, tmp_path / "other.json", "--on", "cuda-cores", "--batch-sizes", "8", rate="25")
    other = f"fleet.0.serving.placement={tmp_path / 'other.json'}"

    serving = load_experiment(saved, [other]).fleet[0].serving
    assert (serving.batch_sizes, serving.placed.accelerator, serving.rate_hz) == ((8,), "cuda-cores", 25.0)
    given = load_experiment(saved, ["fleet.0.serving.rate_hz=30", other]).fleet[0].serving
    assert given.rate_hz == 30.0


def test_other_batch_sizes_are_scaled_as_the_planned_one_and_what_was_not_planned_is_refused(placed, tmp_path):
    whole = load(tmp_path, batch_sizes=[1, 4, 64]).fleet[0].serving
    device = find(DEVICE)
    top = stack_modes([device.maxn])
    costs = average_inference_costs(device, whole, top)
    by_layers = average_inference_costs(device, whole.model_copy(update={"placed": None}), top)
    assert (costs.infer_s[0, 1], costs.power_w[0, 1]) == pytest.approx((whole.placed.batch_s, whole.placed.power_w))
    for planned, layers in ((costs.infer_s, by_layers.infer_s), (costs.power_w, by_layers.power_w)):
        assert planned[0] / planned[0, 1] == pytest.approx(layers[0] / layers[0, 1])

    with pytest.raises(BadInput, match=r"fleet\[0\]\.serving\.batch_sizes: got \[1, 64\]; a list with 4"):
        experiment_checks.check_experiment(load(tmp_path, batch_sizes=[1, 64]))
    for network in ("resnet18", {"model": "resnet50", "input": [3, 64, 64]}):
        with pytest.raises(BadInput, match=r"fleet\[0\]\.serving\.network: got resnet.*resnet50 for 3x224x224"):
            experiment_checks.check_experiment(load(tmp_path, network=network))


def test_a_plan_for_a_file_beside_it_and_a_plan_for_other_images_name_their_network(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    assert Launcher(monkeypatch, capsys)("layers", "resnet18", "--out", "elsewhere/small.json").code == 0
    for model, words in (("elsewhere/small.json", ()), ("resnet18", ("--input-shape", "3x64x64"))):
        plan(
            monkeypatch, capsys, tmp_path / "plan.json", "--on", "cuda-cores", "--batch-sizes", "4", *words, model=model
        )
        experiment = load(tmp_path)
        experiment_checks.check_experiment(experiment)
        serving = experiment.fleet[0].serving
        assert serving.network.model in (str(tmp_path / "elsewhere" / "small.json"), "resnet18")
        assert serving.network.input == ((3, 64, 64) if words else (3, 224, 224))


def test_watts_of_a_plan_from_measurements_start_from_its_own_idle_power(tmp_path, monkeypatch, capsys):
    rows = [
        f"cuda-cores,{batch},fp32,{rate},{watts}" for batch, rate, watts in ((1, 90, 2.6), (4, 150, 2.8), (8, 180, 2.9))
    ]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(["instances,batch_sizes,precisions,images_per_s,watts", *rows]), encoding="utf-8")
    words = ("--on", "cuda-cores", "--batch-sizes", "8", "--measurements", str(table))
    chosen = json.loads(plan(monkeypatch, capsys, tmp_path / "plan.json", *words, rate="1").read_text())["chosen"]
    assert chosen["power_w"] < find(DEVICE).idle_w.value

    serving = load(tmp_path).fleet[0].serving
    assert serving.placed.power_w == chosen["full_load_w"] > chosen["power_w"]


def test_a_figure_of_a_plan_that_cannot_be_is_one_line(placed, tmp_path):
    content = json.loads(placed.read_text())
    content["chosen"]["rate_hz"] = 0
    placed.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(BadInput, match=r"fleet\[0\]\.serving\.placement: got .*plan\.json with rate_hz 0; a file"):
        load(tmp_path)


def test_a_plan_that_works_beside_the_training_is_refused(tmp_path, monkeypatch, capsys):
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
def test_a_plan_of_another_board_or_accelerator_is_refused(changed, told, placed, tmp_path):
    with pytest.raises(BadInput, match=rf"fleet\[0\]\.serving\.placement: .*{told}"):
        experiment_checks.check_experiment(load(tmp_path, **changed))
