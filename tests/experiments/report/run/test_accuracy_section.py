"""A run whose clients evaluate shows their accuracy beside the server's, and what it cost, with its label."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the clients train with torch")

from experiments.backends.launcher import start_run
from experiments.report.run.comparison_page import list_comparison_tables
from experiments.report.run.loaded_runs import LoadedRun, load_run
from experiments.report.run.run_page import build_evaluation_sections, list_evaluation_cards
from experiments.report.run.timeline_charts import build_timeline_charts
from fedge.experiment import Experiment


def play(folder: Path, by: str) -> LoadedRun:
    experiment = Experiment.model_validate(
        {
            "backend": "local",
            "fleet": [{"device": "nano", "count": 2}],
            "rounds": 2,
            "workload": {"local_epochs": 0.2},
            "policy": {"name": "maxn"},
            "evaluation": {"by": by},
        }
    )
    start_run(experiment, folder, lambda: None)
    return load_run(folder)


def test_the_clients_accuracy_is_beside_the_servers_and_the_cost_has_its_label(tmp_path):
    run = play(tmp_path / "run", "both")
    (section,) = build_evaluation_sections(run)
    accuracy, cost = list_evaluation_cards(run)

    traces = {trace["name"]: trace for trace in section.charts[0].data}
    assert set(traces) == {"each client", "clients", "server"}
    assert traces["clients"]["y"] == pytest.approx(traces["server"]["y"]), "two clients share the server's test set"
    assert len(traces["each client"]["x"]) == 4
    assert "on the clients' own test samples" in str(accuracy)
    assert run.labels["nano"]["evaluation"]["label"] in str(cost)
    assert "accuracy-clients" in (tmp_path / "run" / "report.html").read_text("utf-8")
    timeline, _ = build_timeline_charts(run)
    (bars,) = [one for one in timeline.data if one["name"] == "evaluation"]
    assert len(bars["x"]) == 4
    assert timeline.spans[-1][2] > run.rounds[-1].end_s
    (row,) = list_comparison_tables([run])[0].rows
    assert run.energy_with_idle_j in [cell.value for cell in row]
    assert run.energy_with_idle_j == run.summary["energy_j"] + run.summary["evaluation_energy_j"]


def test_without_evaluations_by_clients_there_is_nothing_of_them(tmp_path):
    run = play(tmp_path / "run", "server")

    assert list(build_evaluation_sections(run)) == []
    assert list(list_evaluation_cards(run)) == []
    assert "evaluation_energy_j" not in run.summary
