"""Emulated boards are boards of their own: never what their predictor believes, never each other, always the same."""

import numpy as np
import pytest

from experiments.spec.experiment_loader import load_experiment
from fedge.costs.cost_profile import load_calibrated_training
from fedge.decisions.candidate_modes import mask_candidates
from fedge.devices import catalogue
from fedge.devices.board_kinds import (
    build_kind,
    build_link,
    build_surface,
    build_workload_kind,
    draw_kind_average,
    load_references,
    load_unseen_references,
)
from fedge.devices.emulated_board import find_top_mode
from fedge.errors import BadInput, UnknownName
from fedge.experiment import Experiment, FleetBoard, FleetEntry, LinkSpec, WorkloadSpec, list_boards
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.physical_predictor import PhysicalPredictor
from fedge.types import Floats, LayerWork, OperationCounts, Workload

DEVICES = sorted(catalogue.load_catalogue())
COSTS = sorted({profile.workload for profile in load_calibrated_training()})
NANO = FleetEntry(device="nano", count=2)
TABLE = """cores,cpu_khz,gpu_hz,mem_hz,batch_size,time_ms,power_w
4,1479000,921600000,1600000000,16,812.5,9.25
4,1479000,460800000,1600000000,16,1400,7.5
2,1132800,460800000,800000000,16,2125,4.75
2,1132800,460800000,800000000,32,4000,4.8
"""


NETWORKS = {
    "small": OperationCounts(8e6, 0.0, moved_bytes=5e5, depthwise_bytes=0.0, weight_bytes=9e4, operators=9),
    "large": OperationCounts(3e10, 1e8, moved_bytes=4e8, depthwise_bytes=1e7, weight_bytes=1e8, operators=250),
    "recurrent": OperationCounts(0.0, 3e8, moved_bytes=2e7, depthwise_bytes=0.0, weight_bytes=4e6, operators=1600),
    "transformer": OperationCounts(0.0, 3e9, moved_bytes=1e8, depthwise_bytes=0.0, weight_bytes=5e7, operators=180),
}
KNOBS = ("cores", "cpu_mhz", "gpu_mhz", "mem_mhz")


def unmeasured(network: str, batch_size: int = 16) -> Workload:
    return Workload(network, batch_size, layers=LayerWork(network, NETWORKS[network], loading="cached"))


def board_of(entry: FleetEntry, index: int = 0) -> FleetBoard:
    return list_boards(Experiment(fleet=(entry,)))[index]


def prior_errors(board: FleetBoard, experiment: Experiment) -> tuple[float, float]:
    """Mean |predicted - true| / true of time and power over the modes to choose from, before any measurement."""
    kind = build_kind(board, experiment.workload)
    surface = build_surface(board, kind, experiment.seed)
    truth = surface.select_rows(mask_candidates(surface.modes))
    idle_w = float(surface.idle_w[surface.find_row(find_top_mode(surface))])
    priors = [prior.coefficients for prior in kind.priors]
    prior = PhysicalPredictor(PriorKnowledge(kind.spec.maxn, tuple(priors), idle_w=idle_w)).fit([]).predict(truth.modes)

    def error(predicted: Floats, true: Floats) -> float:
        return float(np.mean(np.abs(predicted / true - 1)))

    return error(prior.step_s, truth.step_s), error(prior.power_w, truth.power_w)


def test_no_board_of_the_quick_start_is_what_its_predictor_believes_before_measuring(project_root):
    """An implausibly small error would mean that the truth was made from the predictor's own prior."""
    experiment = load_experiment(project_root / "experiments" / "configs" / "quickstart.yaml")

    for board in list_boards(experiment):
        time, power = prior_errors(board, experiment)
        assert time >= 0.03, board.name
        assert power >= 0.03, board.name


@pytest.mark.parametrize("cost", COSTS)
def test_no_prior_was_fitted_to_the_workload_that_is_trained(cost):
    for device in DEVICES:
        priors = build_kind(board_of(FleetEntry(device=device)), WorkloadSpec(cost=cost)).priors
        assert priors
        assert all(cost not in prior.source for prior in priors), device


@pytest.mark.parametrize("cost", COSTS)
def test_every_board_and_its_kind_idle_below_its_power_at_work_in_every_mode(cost):
    for device in DEVICES:
        board = board_of(FleetEntry(device=device))
        kind = build_kind(board, WorkloadSpec(cost=cost))
        for surface in (kind.average, *(build_surface(board, kind, seed) for seed in range(3))):
            assert (surface.idle_w > 0).all(), device
            assert (surface.idle_w < surface.power_w).all(), device


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_kind_of_an_unmeasured_network_obeys_physics_whatever_is_drawn(device, network):
    """Raising a knob never lengthens a step nor lowers power (in the model itself, cores by less than 0.1 %)."""
    kind = build_workload_kind(device, unmeasured(network))
    shape = [len(getattr(kind.spec, knob)) for knob in KNOBS]

    assert kind.average.power_w.max() > kind.spec.idle_w.value
    for seed in range(4):
        true = draw_kind_average(kind, seed)
        for axis in range(len(KNOBS)):
            assert (np.diff(np.log(true.step_s).reshape(shape), axis=axis) <= 1e-12).all(), KNOBS[axis]
            assert (np.diff(np.log(true.power_w).reshape(shape), axis=axis) >= -2e-3).all(), KNOBS[axis]
        assert (true.idle_w < true.power_w).all()
        assert true.power_w.max() <= max(kind.spec.max_w.value, 1.2 * kind.average.power_w.max())


@pytest.mark.parametrize("network", NETWORKS)
def test_boards_of_an_unmeasured_network_differ_as_little_as_boards_of_a_measured_one(network):
    """Twice the largest deviation of a board from its kind, and what the residuals add."""
    kind = build_workload_kind("nano", unmeasured(network))

    for seed in range(8):
        one, two = (build_surface(board_of(NANO, i), kind, seed) for i in range(2))
        assert np.abs(np.log(one.step_s / two.step_s)).mean() <= 2 * np.log1p(0.08) + 0.04
        assert np.abs(np.log(one.power_w / two.power_w)).mean() <= 2 * np.log1p(0.08) + 0.04


def test_the_error_of_an_estimate_is_as_large_as_the_study_found_it():
    """Seeds scatter about the estimate, in time by the error that the source names, in power by no more."""
    kind = build_workload_kind("nano", unmeasured("transformer"))
    true = [draw_kind_average(kind, seed) for seed in range(60)]

    time = np.log([surface.step_s / kind.average.step_s for surface in true])
    power = np.log([surface.power_w / kind.average.power_w for surface in true])
    assert 0.7 * kind.cost.time_error_log < np.sqrt(np.mean(time**2)) < 1.1 * kind.cost.time_error_log
    assert 0.1 < np.sqrt(np.mean(power**2)) < kind.cost.power_error_log


def test_the_error_of_an_estimate_is_that_of_the_kind_the_network_and_the_seed():
    def slowdown(device: str, network: str, seed: int, batch_size: int = 16) -> float:
        kind = build_workload_kind(device, unmeasured(network, batch_size))
        return float(draw_kind_average(kind, seed).step_s[-1] / kind.average.step_s[-1])

    one = slowdown("nano", "small", 1)
    assert slowdown("nano", "small", 1, batch_size=8) == pytest.approx(one, rel=0.1)
    for other in (slowdown("tx2", "small", 1), slowdown("nano", "large", 1), slowdown("nano", "small", 2)):
        assert other != pytest.approx(one, rel=0.01)


def test_a_measured_workload_has_no_error_that_boards_share():
    for device in DEVICES:
        kind = build_kind(board_of(FleetEntry(device=device)), WorkloadSpec())
        assert draw_kind_average(kind, 1) is kind.average


def test_boards_of_a_kind_share_their_average_and_differ_from_it_and_from_each_other():
    one, two = (board_of(NANO, i) for i in range(2))
    kind = build_kind(one, WorkloadSpec())
    assert build_kind(two, WorkloadSpec()) is kind

    surfaces = [build_surface(board, kind, 1) for board in (one, two)]

    for surface in (*surfaces, kind.average):
        np.testing.assert_array_equal(surface.modes.knobs, kind.average.modes.knobs)
    for a, b in ((surfaces[0], surfaces[1]), (surfaces[0], kind.average), (surfaces[1], kind.average)):
        assert np.mean(np.abs(a.step_s / b.step_s - 1)) > 0.005
        assert np.mean(np.abs(a.power_w / b.power_w - 1)) > 0.005


def test_the_seed_and_the_name_fix_a_board():
    board, kind = board_of(NANO), build_kind(board_of(NANO), WorkloadSpec())
    elsewhere = board.model_copy(update={"index": 7})

    again, other = build_surface(elsewhere, kind, 1), build_surface(board, kind, 2)

    np.testing.assert_array_equal(again.step_s, build_surface(board, kind, 1).step_s)
    np.testing.assert_array_equal(again.power_w, build_surface(board, kind, 1).power_w)
    assert not np.allclose(other.step_s, again.step_s)


def test_a_measured_table_is_replayed_exactly_by_every_board(tmp_path):
    path = tmp_path / "made-up.csv"
    path.write_text(TABLE)
    entry = FleetEntry(device="nano", count=2, truth=f"table:{path}")

    for index in range(2):
        kind = build_kind(board_of(entry, index), WorkloadSpec())
        surface = build_surface(board_of(entry, index), kind, seed=index)
        assert surface.modes.knobs.tolist() == [
            [4, 1479.0, 921.6, 1600.0],
            [4, 1479.0, 460.8, 1600.0],
            [2, 1132.8, 460.8, 800.0],
        ]
        assert surface.step_s.tolist() == [0.8125, 1.4, 2.125]
        assert surface.power_w.tolist() == [9.25, 7.5, 4.75]
        assert (surface.idle_w < surface.power_w).all()
        assert (kind.truth_label, kind.truth_source) == ("unknown", "made-up.csv (3 rows)")


def test_a_table_of_an_emulated_board_is_not_called_measured(tmp_path):
    path = tmp_path / "made-up.csv"
    head, *rows = TABLE.strip().splitlines()
    path.write_text("\n".join([f"{head},label", *(f"{row},calibrated" for row in rows)]))
    entry = FleetEntry(device="nano", truth=f"table:{path}")
    assert build_kind(board_of(entry), WorkloadSpec()).truth_label == "calibrated"


def test_a_table_without_the_batch_size_lists_those_it_has(tmp_path):
    path = tmp_path / "made-up.csv"
    path.write_text(TABLE)
    board = board_of(FleetEntry(device="nano", truth=f"table:{path}"))

    with pytest.raises(BadInput, match="batch size: got 8; known: 16, 32"):
        build_kind(board, WorkloadSpec(batch_size=8))


def test_a_table_that_is_not_there_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match=r"gone\.csv: got no such file"):
        build_kind(board_of(FleetEntry(device="nano", truth=f"table:{tmp_path / 'gone.csv'}")), WorkloadSpec())


@pytest.mark.parametrize(
    ("entry", "workload", "message"),
    [
        ({"device": "pineapple"}, {}, r"fleet\.device: got 'pineapple'; known: .*orin-nano"),
        ({"device": "nano"}, {"cost": "digits"}, "resnet18-imagenet"),
        ({"device": "nano", "cost": "digits"}, {}, r"fleet\.cost: got 'digits'; known: .*vit-b16-cifar10"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(entry, workload, message):
    with pytest.raises(UnknownName, match=message):
        build_kind(board_of(FleetEntry(**entry)), WorkloadSpec(**workload))


def test_a_link_carries_the_model_both_ways_at_its_rates():
    link = build_link(LinkSpec(down_mbps=8.0, up_mbps=4.0, latency_s=0.25, radio_w=2.0), measured_mbps=99.0)
    used = link.transfer(down_bytes=1_000_000, up_bytes=500_000)
    assert (used.down_s, used.up_s, used.radio_j) == pytest.approx((1.25, 1.25, 5.0))


def test_an_entry_of_its_own_cost_is_what_a_fleet_of_that_cost_would_be():
    own = FleetEntry(device="agx-orin-64gb", cost="vit-b16-cifar10")
    plain = FleetEntry(device="agx-orin-64gb")

    mixed = build_kind(board_of(own), WorkloadSpec(cost="resnet18-imagenet", batch_size=16))

    alone = build_kind(board_of(plain), WorkloadSpec(cost="vit-b16-cifar10", batch_size=32))
    np.testing.assert_array_equal(mixed.average.step_s, alone.average.step_s)
    assert [prior.source for prior in mixed.priors] == [prior.source for prior in alone.priors]
    assert all("vit-b16-cifar10" not in prior.source for prior in mixed.priors)
    assert any("resnet18-imagenet" in prior.source for prior in mixed.priors)


def test_an_entry_of_its_own_cost_replays_a_table_at_the_tables_batch_size(tmp_path):
    path = tmp_path / "made-up.csv"
    path.write_text("\n".join(line for line in TABLE.splitlines() if ",16," not in line))
    entry = FleetEntry(device="nano", cost="vit-b16-cifar10", truth=f"table:{path}")

    assert build_kind(board_of(entry), WorkloadSpec()).average.step_s.tolist() == [4.0]
    with pytest.raises(BadInput, match="batch size: got 16; known: 32"):
        build_kind(board_of(entry.model_copy(update={"cost": None})), WorkloadSpec())


def test_a_table_of_the_entrys_own_workload_is_no_reference(tmp_path):
    path = tmp_path / "vit-b16-cifar10.csv"
    path.write_text("\n".join(line for line in TABLE.splitlines() if ",32," not in line))
    entry = FleetEntry(device="nano", cost="vit-b16-cifar10", references=(str(path),))

    with pytest.raises(BadInput, match="which is what the boards work on"):
        load_unseen_references(board_of(entry), WorkloadSpec())
    assert load_unseen_references(board_of(entry.model_copy(update={"cost": None})), WorkloadSpec())


def test_a_run_learns_from_a_table_of_its_own_workload_and_leaves_model_files_to_its_launcher(tmp_path):
    path = tmp_path / "vit-b16-cifar10.csv"
    path.write_text("\n".join(line for line in TABLE.splitlines() if ",32," not in line))
    entry = FleetEntry(device="nano", cost="vit-b16-cifar10", references=(str(path), "nano.safetensors"))

    assert [table.path for table in load_references(board_of(entry), WorkloadSpec())] == [str(path)]


def test_every_board_of_an_entry_can_replay_a_table_of_its_own(tmp_path):
    lines = TABLE.splitlines()[:4]
    for number, idle_w in ((1, 2.0), (2, 4.0)):
        rows = [f"{line},{idle_w / place}" for place, line in enumerate(lines[1:], start=1)]
        (tmp_path / f"nano-{number}.csv").write_text("\n".join([f"{lines[0]},idle_w", *rows]), encoding="utf-8")
    entry = NANO.model_copy(update={"truth": f"table:{tmp_path}/{{board}}.csv"})

    kinds = [build_kind(board_of(entry, index), WorkloadSpec()) for index in range(2)]

    assert [kind.average.idle_w.tolist() for kind in kinds] == [[2.0, 1.0, 2 / 3], [4.0, 2.0, 4 / 3]]


def test_an_idle_board_of_a_table_draws_less_than_a_working_one(tmp_path):
    lines = TABLE.splitlines()[:4]
    (tmp_path / "nano.csv").write_text("\n".join([f"{lines[0]},idle_w", *(f"{line},50" for line in lines[1:])]))

    average = build_kind(
        board_of(NANO.model_copy(update={"truth": f"table:{tmp_path}/nano.csv"})), WorkloadSpec()
    ).average

    assert np.all(average.idle_w < average.power_w)
