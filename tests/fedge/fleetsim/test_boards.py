"""Emulated boards are boards of their own: never what their predictor believes, never each other, always the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.schema import load_experiment
from fedge import rounds
from fedge.costs.record import load_calibrated
from fedge.devices import catalogue
from fedge.devices.emulated import top_mode
from fedge.errors import BadInput, UnknownName
from fedge.experiment import Board, Experiment, FleetEntry, LinkSpec, WorkloadSpec, boards
from fedge.fleetsim.boards import kind_of, link_of, references_of, surface_of
from fedge.physics.knowledge import Knowledge
from fedge.predictors.physical import PhysicalPredictor
from fedge.types import Floats

DEVICES = sorted(catalogue.load_catalogue())
COSTS = sorted({profile.workload for profile in load_calibrated()})
NANO = FleetEntry(device="nano", count=2)
TABLE = """cores,cpu_khz,gpu_hz,mem_hz,batch_size,time_ms,power_w
4,1479000,921600000,1600000000,16,812.5,9.25
4,1479000,460800000,1600000000,16,1400,7.5
2,1132800,460800000,800000000,16,2125,4.75
2,1132800,460800000,800000000,32,4000,4.8
"""


def board_of(entry: FleetEntry, index: int = 0) -> Board:
    return boards(Experiment(fleet=(entry,)))[index]


def prior_errors(board: Board, experiment: Experiment) -> tuple[float, float]:
    """Mean |predicted - true| / true of time and power over the modes to choose from, before any measurement."""
    kind = kind_of(board, experiment.workload)
    surface = surface_of(board, kind, experiment.seed)
    truth = surface.where(rounds.choosable(surface.modes))
    idle_w = float(surface.idle_w[surface.row(top_mode(surface))])
    priors = [prior.coefficients for prior in kind.priors]
    prior = PhysicalPredictor(Knowledge(kind.spec.maxn, tuple(priors), idle_w=idle_w)).fit([]).predict(truth.modes)

    def error(predicted: Floats, true: Floats) -> float:
        return float(np.mean(np.abs(predicted / true - 1)))

    return error(prior.step_s, truth.step_s), error(prior.power_w, truth.power_w)


def test_no_board_of_the_quick_start_is_what_its_predictor_believes_before_measuring(project_root: Path) -> None:
    """An implausibly small error would mean that the truth was made from the predictor's own prior."""
    experiment = load_experiment(project_root / "experiments" / "configs" / "quickstart.yaml")

    for board in boards(experiment):
        time, power = prior_errors(board, experiment)
        assert time >= 0.03, board.name
        assert power >= 0.03, board.name


@pytest.mark.parametrize("cost", COSTS)
def test_no_prior_was_fitted_to_the_workload_that_is_trained(cost: str) -> None:
    for device in DEVICES:
        priors = kind_of(board_of(FleetEntry(device=device)), WorkloadSpec(cost=cost)).priors
        assert priors
        assert all(cost not in prior.source for prior in priors), device


@pytest.mark.parametrize("cost", COSTS)
def test_a_kind_of_board_idles_below_its_power_at_work_in_every_mode(cost: str) -> None:
    for device in DEVICES:
        average = kind_of(board_of(FleetEntry(device=device)), WorkloadSpec(cost=cost)).average
        assert (average.idle_w > 0).all(), device
        assert (average.idle_w < average.power_w).all(), device


@pytest.mark.parametrize("cost", COSTS)
def test_every_single_board_idles_below_its_power_at_work_in_every_mode(cost: str) -> None:
    for device in DEVICES:
        board = board_of(FleetEntry(device=device))
        kind = kind_of(board, WorkloadSpec(cost=cost))
        for seed in range(3):
            surface = surface_of(board, kind, seed)
            assert (surface.idle_w < surface.power_w).all(), (device, seed)


def test_boards_of_a_kind_share_their_average_and_differ_from_it_and_from_each_other() -> None:
    one, two = (board_of(NANO, i) for i in range(2))
    kind = kind_of(one, WorkloadSpec())
    assert kind_of(two, WorkloadSpec()) is kind

    surfaces = [surface_of(board, kind, 1) for board in (one, two)]

    for surface in (*surfaces, kind.average):
        np.testing.assert_array_equal(surface.modes.knobs, kind.average.modes.knobs)
    for a, b in ((surfaces[0], surfaces[1]), (surfaces[0], kind.average), (surfaces[1], kind.average)):
        assert np.mean(np.abs(a.step_s / b.step_s - 1)) > 0.005
        assert np.mean(np.abs(a.power_w / b.power_w - 1)) > 0.005


def test_the_seed_and_the_name_fix_a_board() -> None:
    board, kind = board_of(NANO), kind_of(board_of(NANO), WorkloadSpec())
    elsewhere = board.model_copy(update={"index": 7})

    again, other = surface_of(elsewhere, kind, 1), surface_of(board, kind, 2)

    np.testing.assert_array_equal(again.step_s, surface_of(board, kind, 1).step_s)
    np.testing.assert_array_equal(again.power_w, surface_of(board, kind, 1).power_w)
    assert not np.allclose(other.step_s, again.step_s)


def test_a_measured_table_is_replayed_exactly_by_every_board(tmp_path: Path) -> None:
    path = tmp_path / "made-up.csv"
    path.write_text(TABLE)
    entry = FleetEntry(device="nano", count=2, truth=f"table:{path}")

    for index in range(2):
        kind = kind_of(board_of(entry, index), WorkloadSpec())
        surface = surface_of(board_of(entry, index), kind, seed=index)
        assert surface.modes.knobs.tolist() == [
            [4, 1479.0, 921.6, 1600.0],
            [4, 1479.0, 460.8, 1600.0],
            [2, 1132.8, 460.8, 800.0],
        ]
        assert surface.step_s.tolist() == [0.8125, 1.4, 2.125]
        assert surface.power_w.tolist() == [9.25, 7.5, 4.75]
        assert (surface.idle_w < surface.power_w).all()
        assert (kind.truth_label, kind.truth_source) == ("measured", "made-up.csv (3 rows)")


def test_a_table_of_an_emulated_board_is_not_called_measured(tmp_path: Path) -> None:
    path = tmp_path / "made-up.csv"
    path.write_text(TABLE)
    path.with_name("made-up.csv.json").write_text('{"label": "emulated", "truth_label": "calibrated"}')
    entry = FleetEntry(device="nano", truth=f"table:{path}")
    assert kind_of(board_of(entry), WorkloadSpec()).truth_label == "calibrated"


def test_a_table_without_the_batch_size_lists_those_it_has(tmp_path: Path) -> None:
    path = tmp_path / "made-up.csv"
    path.write_text(TABLE)
    board = board_of(FleetEntry(device="nano", truth=f"table:{path}"))

    with pytest.raises(BadInput, match="batch size: got 8; known: 16, 32"):
        kind_of(board, WorkloadSpec(batch_size=8))


def test_a_table_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone\.csv: got no such file"):
        kind_of(board_of(FleetEntry(device="nano", truth=f"table:{tmp_path / 'gone.csv'}")), WorkloadSpec())


def test_an_unknown_device_is_bad_input_that_lists_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"fleet\.device: got 'pineapple'; known: .*orin-nano"):
        kind_of(board_of(FleetEntry(device="pineapple")), WorkloadSpec())


def test_an_unknown_cost_is_bad_input_that_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="resnet18-imagenet"):
        kind_of(board_of(NANO), WorkloadSpec(cost="digits"))


def test_a_link_carries_the_model_both_ways_at_its_rates() -> None:
    link = link_of(LinkSpec(down_mbps=8.0, up_mbps=4.0, latency_s=0.25, radio_w=2.0))
    used = link.transfer(1_000_000)
    assert (used.down_s, used.up_s, used.radio_j) == pytest.approx((1.25, 2.25, 7.0))


def test_an_entry_of_its_own_cost_is_what_a_fleet_of_that_cost_would_be() -> None:
    own = FleetEntry(device="agx-orin-64gb", cost="vit-b16-cifar10")
    plain = FleetEntry(device="agx-orin-64gb")

    mixed = kind_of(board_of(own), WorkloadSpec(cost="resnet18-imagenet", batch_size=16))

    alone = kind_of(board_of(plain), WorkloadSpec(cost="vit-b16-cifar10", batch_size=32))
    np.testing.assert_array_equal(mixed.average.step_s, alone.average.step_s)
    assert [prior.source for prior in mixed.priors] == [prior.source for prior in alone.priors]
    assert all("vit-b16-cifar10" not in prior.source for prior in mixed.priors)
    assert any("resnet18-imagenet" in prior.source for prior in mixed.priors)


def test_an_entry_of_its_own_cost_replays_a_table_at_the_tables_batch_size(tmp_path: Path) -> None:
    path = tmp_path / "made-up.csv"
    path.write_text("\n".join(line for line in TABLE.splitlines() if ",16," not in line))
    entry = FleetEntry(device="nano", cost="vit-b16-cifar10", truth=f"table:{path}")

    assert kind_of(board_of(entry), WorkloadSpec()).average.step_s.tolist() == [4.0]
    with pytest.raises(BadInput, match="batch size: got 16; known: 32"):
        kind_of(board_of(entry.model_copy(update={"cost": None})), WorkloadSpec())


def test_a_table_of_the_entrys_own_workload_is_no_reference(tmp_path: Path) -> None:
    path = tmp_path / "vit-b16-cifar10.csv"
    path.write_text("\n".join(line for line in TABLE.splitlines() if ",32," not in line))
    entry = FleetEntry(device="nano", cost="vit-b16-cifar10", references=(str(path),))

    with pytest.raises(BadInput, match="which is what the boards work on"):
        references_of(board_of(entry), WorkloadSpec())
    assert references_of(board_of(entry.model_copy(update={"cost": None})), WorkloadSpec())


def test_an_entrys_unknown_cost_is_bad_input_that_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"fleet\.cost: got 'digits'; known: .*vit-b16-cifar10"):
        kind_of(board_of(FleetEntry(device="nano", cost="digits")), WorkloadSpec())
