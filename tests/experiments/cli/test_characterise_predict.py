"""``fedge characterise-predict``: what is asked for, what stands in its place where nothing is said, the best mode."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from contracts.epoch_looks import MODES, NAME, PLANS, TOP, look
from typer.testing import CliRunner

from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.characterisation import sweep_prediction
from fedge.characterisation.observed_pipeline import PointObservation
from fedge.characterisation.point_measurement import EpochSummary, MinibatchTimes, PointMeasurement, SensorTrace
from fedge.characterisation.sweep_plan import CharacterisationPlan, Images, MeasurementSchedule, WorkloadPlan
from fedge.characterisation.sweep_prediction import (
    EpochPrediction,
    EpochPredictionOptions,
    fit_loader,
    predict_result_epochs,
)
from fedge.characterisation.sweep_store import SweepResult
from fedge.client.emulated import load_client
from fedge.errors import BadInput, UnknownName
from fedge.experiment import Experiment

NONE = SensorTrace(*(np.zeros(0) for _ in range(7)))
PLAN = CharacterisationPlan(
    "made-up",
    ("agx-xavier-1",),
    {
        NAME: WorkloadPlan(
            name=NAME,
            model="resnet50",
            input=(3, 224, 224),
            classes=10,
            images=Images(count=640, width=800, height=600, kb=160.0),
        )
    },
    PLANS,
    MeasurementSchedule(epochs=1, discard=0),
    (),
    base={"workers": 4, "storage": "ssd"},
)


def _seen(one: PointObservation) -> PointMeasurement:
    """A look as the epoch of forty minibatches that it came from."""
    steps, means = 40, one.means
    names = ("fetch_s", "preprocess_s", "stall_s", "copy_s", "compute_s", "overhead_s", "step_s")
    columns = {name: np.full(steps, getattr(means, name)) for name in names}
    columns["stall_s"][0] = max(one.first_s, means.stall_s)
    number = np.arange(steps)
    minibatches = MinibatchTimes(np.zeros(steps, dtype=np.int64), number, number * means.step_s, **columns)
    assert one.power_w is not None
    e2e_s = steps * means.step_s
    parts = [float(columns[name].sum()) for name in ("fetch_s", "preprocess_s", "stall_s", "copy_s", "compute_s")]
    epoch = EpochSummary(0, steps, e2e_s, *parts, float(columns["overhead_s"].sum()), one.power_w * e2e_s, one.power_w)
    point = replace(one.point, cache="warm")
    arrays = (lambda: minibatches, (epoch,), lambda: NONE)
    return PointMeasurement(point, *arrays, "estimated", "made up", e2e_s, power_label="estimated")


RESULT = SweepResult(
    PLAN,
    Path("swept"),
    tuple(_seen(one) for one in [*(look(mode, 4) for mode in MODES), look(), look(workers=1)]),
    (),
    (),
)


def _lines(**asked: object) -> list[EpochPrediction]:
    return predict_result_epochs(RESULT, EpochPredictionOptions(Path("swept"), **asked))


def test_without_options_every_mode_that_was_tried_is_foreseen_as_it_was_seen():
    lines = _lines()

    assert {line.mode for line in lines} == {f"{m.cores}/{m.cpu_mhz:g}/{m.gpu_mhz:g}/{m.mem_mhz:g}" for m in MODES}
    assert {(line.workers, line.storage, line.batch_size) for line in lines} == {(4, "ssd", 16)}
    for line in lines:
        assert line.seen_s is not None
        assert line.e2e_s == pytest.approx(line.seen_s, rel=0.06)
        assert line.seen_j == pytest.approx(line.energy_j, rel=0.1)
        assert line.label == "estimated"


def test_a_mode_is_named_as_in_a_plan_and_a_loader_by_its_knobs():
    (line,) = _lines(modes=("4/1200/670/1333",), loader_workers=2)
    (asked,) = _lines(modes=("maxn",), loader_workers=0)

    assert (line.mode, line.workers, line.seen_s) == ("4/1190.4/675.75/1331.2", 2, None)
    assert line.seen_j is None
    assert asked.stall_s is not None
    assert line.stall_s is not None
    assert asked.stall_s > 3 * line.stall_s
    assert asked.e2e_s == pytest.approx(40 * look().means.step_s, rel=0.06)


def test_the_best_modes_are_in_order():
    best = {name: _lines(best=name)[0] for name in ("time", "energy", "balanced")}

    seconds = [best[name].e2e_s for name in ("time", "balanced", "energy")]
    joules = [best[name].energy_j or 0.0 for name in ("time", "balanced", "energy")]
    assert seconds == sorted(seconds)
    assert joules == sorted(joules, reverse=True)


def test_the_simple_predictor_knows_the_modes_of_one_loader_alone():
    lines = _lines(formula="simple", modes=("maxn",))

    assert lines[0].stall_s is None
    assert lines[0].e2e_s == pytest.approx(40 * look(TOP, 4).means.step_s, rel=0.2)
    with pytest.raises(BadInput, match="it predicts modes alone"):
        _lines(formula="simple", loader_workers=3)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"formula": "magic"}, "epochs, simple"),
        ({"best": "cheap"}, "time, energy, balanced"),
        ({"cache": "hot"}, "warm, dropped"),
        ({"kind": "guess"}, "train, infer"),
        ({"kind": "infer"}, "nothing of"),
        ({"workload": "lenet"}, NAME),
        ({"board": "nano-1"}, "agx-xavier-1"),
        ({"loader_workers": -1}, "0 or more"),
        ({"batch_size": 0}, "1 or more"),
        ({"storage": "floppy", "cache": "dropped"}, "ssd"),
        ({"storage": "floppy", "cache": "warm"}, "ssd"),
        ({"modes": ("3/5/5/5",)}, "5 MHz"),
    ],
)
def test_what_the_sweep_cannot_tell_is_a_line_with_what_would_be_right(asked, said):
    with pytest.raises((BadInput, UnknownName), match=said):
        _lines(**asked)


def test_the_command_prints_a_table_and_json(monkeypatch):
    from experiments.cli.main import app

    monkeypatch.setattr(sweep_prediction, "read_result", lambda _: RESULT)
    shown = CliRunner().invoke(app, ["characterise-predict", "swept", "--mode", "maxn", "--loader-workers", "2"])
    data = CliRunner().invoke(app, ["characterise-predict", "swept", "--best", "energy", "--json"])

    assert shown.exit_code == 0, shown.output
    assert "8/2265.6/1377/2133" in shown.output
    assert json.loads(data.stdout)[0]["workload"] == NAME


@pytest.fixture
def loader_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from experiments.cli.main import app

    monkeypatch.setattr(sweep_prediction, "read_result", lambda _: RESULT)
    file = tmp_path / "loader.json"
    shown = CliRunner().invoke(app, ["characterise-predict", "swept", "--mode", "maxn", "--loader-out", str(file)])
    assert shown.exit_code == 0, shown.output
    return file


def _load(folder: Path, device: str = "agx-xavier", **loader: object) -> Experiment:
    path = folder / "exp.yaml"
    content = {"fleet": [{"device": device, "loader": {"model": "loader.json", **loader}}], "backend": "local"}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_experiment(path)


def test_a_fleet_entry_trains_with_the_loader_that_was_fitted_and_says_where_it_comes_from(loader_file):
    experiment = _load(loader_file.parent, workers=1)
    client = load_client(experiment, 0)

    fitted = fit_loader(EpochPredictionOptions(Path("swept"))).pipeline.top
    assert client.loader.expected.pipeline.samples == fitted.samples
    assert client.loader.expected.pipeline.host.crowding == fitted.host.crowding
    label = experiment_checks.build_labels(experiment, set())["agx-xavier"]["loader"]
    assert label["label"] == "estimated"
    assert label["source"].endswith(f"fitted to {NAME}, {len(RESULT.points)} observations of agx-xavier-1 in swept")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"device": "nano"}, r"fleet\[0\]\.loader\.model: got .*loader\.json of agx-xavier; .* fitted on nano"),
        ({"model": "nowhere.json"}, r"fleet\[0\]\.loader\.model: .*nowhere\.json .*--loader-out"),
        ({"image_mpixel": 0.25}, r"fleet\[0\]\.loader\.image_mpixel: got 0\.25; .*beside model"),
        ({"storage": "floppy", "cached": 0.0}, r"fleet\[0\]\.loader\.storage: .*floppy.*ssd"),
    ],
)
def test_a_fitted_loader_that_does_not_belong_to_the_entry_is_refused(changed, said, loader_file):
    with pytest.raises((BadInput, UnknownName), match=said):
        experiment_checks.check_experiment(_load(loader_file.parent, **{"workers": 1, **changed}))


def test_a_resumed_run_refuses_a_loader_that_has_changed_since_and_an_override_names_another(loader_file):
    started = _load(loader_file.parent, workers=1)
    saved = loader_file.parent / "run.yaml"
    saved.write_text(yaml.safe_dump(started.model_dump(mode="json")), encoding="utf-8")
    experiment_checks.check_experiment(load_experiment(saved))
    loader_file.write_text(loader_file.read_text(encoding="utf-8") + "\n", encoding="utf-8")

    with pytest.raises(BadInput, match=r"fleet\[0\]\.loader\.model: got .*loader\.json, which has changed since; "):
        experiment_checks.check_experiment(load_experiment(saved))
    experiment_checks.check_experiment(load_experiment(saved, [f"fleet.0.loader.model={loader_file}"]))
