"""The summary's savings: over the rounds in which every board's truth is known, against both baselines."""

import dataclasses
from dataclasses import dataclass, field

import pytest

from experiments.report.run.loaded_runs import load_run
from experiments.report.run.run_summary import find_budget_end, summarise_run
from experiments.report.run.run_tables import describe_emulation, describe_links
from experiments.report.run.seed_comparison import list_energy_figures
from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.experiment import Experiment, SignalSpec
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow


def summary_of(folder):
    experiment = load_experiment(folder / "run.yaml")
    return summarise_run(
        experiment, read_rows(folder, RoundRow), read_rows(folder, ClientRow), 1.0, read_rows(folder, EventRow)
    )


def test_what_refused_clients_spent_is_told_apart(make_run):
    def refuse(row):
        return dataclasses.replace(row, status="failed", error="refused: x") if row.board.endswith("-1") else row

    found, rows = summary_of(folder := make_run(change=refuse)), read_rows(folder, ClientRow)
    assert found["refused_energy_j"] == sum(row.energy_j for row in rows if row.board.endswith("-1")) > 0


def test_a_round_is_compared_with_maxn_only_where_all_did_their_whole_work(make_run, fail):
    assert summary_of(make_run())["round_vs_maxn"] == pytest.approx(20 / 16)
    found = summary_of(make_run("failing", change=fail))
    assert (found["maxn_mean_round_s"], found["round_vs_maxn"]) == (16.0, pytest.approx(20 / 16))
    assert summary_of(make_run("real", truth=False))["round_vs_maxn"] is None


def test_a_round_that_ended_before_a_late_board_is_not_compared_with_maxn_which_would_wait_for_it(make_run):
    def late(row):
        return dataclasses.replace(row, status="late") if row.round == 1 and row.board == "nano-1" else row

    assert summary_of(make_run(change=late))["compared_rounds"] == 2


def test_staleness_is_the_mean_of_the_results_that_tell_theirs(make_run):
    def stale(row):
        return dataclasses.replace(row, staleness={"nano-1": 4, "nano-2": 1}.get(row.board))

    assert summary_of(make_run(change=stale))["mean_staleness"] == pytest.approx(2.5)
    assert summary_of(make_run("untold"))["mean_staleness"] is None


def test_the_rate_of_the_links_is_the_median_of_what_was_measured(make_run):
    def timed(row):
        return dataclasses.replace(row, link_mbps={"nano-1": 2.0 + row.round, "nano-2": None}.get(row.board))

    assert summary_of(make_run(change=timed))["link_mbps"] == 4.0
    assert summary_of(make_run("untold"))["link_mbps"] is None


def test_a_run_that_its_budget_ended_says_so_and_one_that_went_on_does_not(make_run):
    def spent(number):
        return EventRow(60.0, number, None, "budget", "290 J of 300 J are spent; round 4 would take 90 J")

    rounds = read_rows(make_run(), RoundRow)
    assert find_budget_end(rounds, [spent(4)]) == "290 J of 300 J are spent; round 4 would take 90 J"
    assert find_budget_end(rounds, [spent(3)]) is None
    assert summary_of(make_run("ended", events=[spent(4)]))["ended"].startswith("290 J of 300 J")


def test_a_run_without_rounds_has_a_summary_without_figures(make_run):
    found = summary_of(make_run(rounds=0))
    assert (found["rounds"], found["makespan_s"], found["energy_j"]) == (0, 0.0, 0)
    assert found["saving_vs_maxn"] is found["maxn_mean_round_s"] is found["final_accuracy"] is None


@dataclass(frozen=True)
class Told:
    """What the sentence is made from."""

    experiment: Experiment
    labels: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("backend", "begins"), [("fleet", "<b>Measured by the boards"), ("sim", "<b>Emulated:</b> time, power")]
)
def test_the_page_says_what_is_measured(backend, begins):
    experiment = Experiment.model_validate({"fleet": [{"device": "nano"}], "backend": backend})

    assert describe_emulation(Told(experiment)).startswith(begins)


def test_a_recorded_folder_in_place_of_a_board_is_told():
    experiment = Experiment.model_validate({"fleet": [{"device": "nano"}], "backend": "fleet"})
    labels = experiment_checks.build_labels(experiment, {"nano-1"})

    assert labels["nano"]["truth"]["label"] == "estimated"
    assert "measure nothing" in describe_emulation(Told(experiment, labels))


def test_the_page_says_which_model_is_moved_and_which_is_trained():
    fleet = [{"device": "nano"}, {"device": "nano", "name": "vit", "cost": "vit-b16-cifar10"}]
    one, two = (Experiment.model_validate({"fleet": fleet[:count]}) for count in (1, 2))

    assert describe_emulation(Told(one, experiment_checks.build_labels(one))).endswith(
        "<b>Moved:</b> 46.8 MB each way (the parameters of resnet18-imagenet, 4 bytes each); "
        "the trained model has 24.7 kB."
    )
    assert (
        "343 MB each way (the parameters of vit-b16-cifar10, 4 bytes each) for vit; the trained model has 24.7 kB"
        in describe_emulation(Told(two, experiment_checks.build_labels(two)))
    )


def test_a_model_of_unknown_size_is_said_to_be_the_trained_one(monkeypatch):
    experiment = Experiment.model_validate({"fleet": [{"device": "nano"}]})
    monkeypatch.setattr("fedge.costs.layered_work.find_known_network", lambda _: None)

    moved = describe_links(experiment_checks.build_link_labels(experiment))
    assert moved == (
        "24.7 kB each way (the trained model: resnet18-imagenet has no known layers or workload.model_mb); "
        "the trained model has 24.7 kB"
    )


def test_a_size_of_the_users_own_is_moved():
    experiment = Experiment.model_validate({"fleet": [{"device": "nano"}], "workload": {"model_mb": 23.4}})
    moved = describe_links(experiment_checks.build_link_labels(experiment))
    assert moved == "23.4 MB each way (workload.model_mb); the trained model has 24.7 kB"


def test_real_boards_move_what_they_train():
    experiment = Experiment.model_validate({"fleet": [{"device": "nano"}], "backend": "fleet"})
    moved = describe_links(experiment_checks.build_link_labels(experiment))
    assert moved == "24.7 kB each way (the trained model); the trained model has 24.7 kB"


def test_the_cost_of_energy_is_that_of_all_rounds_and_only_of_a_run_with_a_signal(make_run):
    run = load_run(make_run())
    rounds = [dataclasses.replace(row, energy_cost=0.5) for row in run.rounds]
    priced = run.experiment.model_copy(update={"signal": SignalSpec(trace="x.csv", unit="ct")})
    summary = summarise_run(priced, rounds=rounds, clients=run.clients, wall_s=None)

    assert (summary["energy_cost"], summary["energy_cost_unit"]) == (1.5, "ct")
    assert "energy_cost" not in run.summary
    shown = list_energy_figures([dataclasses.replace(run, experiment=priced, summary=summary)])
    assert [(one.heading, one.unit) for one in shown] == [("energy", "J"), ("cost by signal", "ct")]
    assert len(list_energy_figures([run])) == 1
