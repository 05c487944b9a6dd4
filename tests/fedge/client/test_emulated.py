"""An emulated client answers every message, learns from round to round, and never lets an error out."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
from contracts.federated_client import Ask, ClientContract

from fedge import workloads
from fedge.client import emulated, prediction_requests
from fedge.client.answers import Answer
from fedge.client.emulated import ClientTask
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.decisions.planning import load_planner
from fedge.decisions.planning.front_columns import find_least_energy_point
from fedge.devices.emulated_board import WARM_UP_STEPS, mode_change_s
from fedge.errors import BadInput
from fedge.experiment import (
    DataSpec,
    Experiment,
    ExplorationSpec,
    FleetEntry,
    LinkSpec,
    MemorySpec,
    PolicySpec,
    WorkloadSpec,
    list_boards,
)
from fedge.types import Measurement, ModeMix, NamedArrays, RoundGoal, RoundReport, TrainResult
from fedge.wire import ClientState, ReplyMessage, RequestMessage, from_json, to_json

pytest.importorskip("torch", reason="a client trains")

MODEL_BYTES = 100_000
EXPERIMENT = Experiment(
    fleet=(FleetEntry(device="nano", count=2), FleetEntry(device="orin-nano")),
    workload=WorkloadSpec(local_epochs=0.5, model_mb=MODEL_BYTES / 1e6, memory=MemorySpec(margin=0.05)),
)
RESNET18_BYTES = 4 * 11_689_512
"""Parameters of torchvision's ResNet-18 as its documentation gives them."""

BROKEN_TASK = """
import numpy as np

class Broken:
    labels = np.arange(60) % 3
    def __init__(self, data_dir, download): ...
    def initial_arrays(self, seed): ...
    buffers = ()

    def start(self, arrays, share, seed, options):
        raise RuntimeError("the samples are gone")
    def evaluate(self, arrays): ...
"""


@pytest.fixture(scope="module")
def arrays() -> NamedArrays:
    return workloads.load_experiment_task(EXPERIMENT).initial_arrays(1)


class TestEmulatedClient(ClientContract):
    @pytest.fixture
    def ask(self) -> Ask:
        return lambda experiment, request, arrays: emulated.answer_request(experiment, 0, request, arrays)


def ask_of(kind: str = "train", number: int = 1, policy: str = "balanced", **more: object) -> RequestMessage:
    return dataclasses.replace(RequestMessage("train", number, 0.0, policy, model_bytes=MODEL_BYTES), kind=kind, **more)


def planned(slowdown: float = 1.05, experiment: Experiment = EXPERIMENT, index: int = 0) -> RoundGoal:
    """A deadline relative to what the board expects of MAXN."""
    front = emulated.answer_request(experiment, index, ask_of("front"), None)[0].front
    return RoundGoal("balanced", 0, slowdown * (front.link_s + front.maxn.work_s))


def played(
    arrays: NamedArrays, ask: RequestMessage, index: int = 0, experiment: Experiment = EXPERIMENT
) -> tuple[RoundReport, ClientState, TrainResult]:
    answer, trained = emulated.answer_request(experiment, index, ask, arrays)
    assert answer.error is None
    assert answer.report is not None
    assert answer.state is not None
    assert trained is not None
    return answer.report, answer.state, trained


def test_boards_of_an_entry_share_their_modes_and_their_memory_model():
    what = Experiment(fleet=(FleetEntry(device="orin-nano", count=2),), data=DataSpec(partition="iid"))
    one, other = (emulated.load_client(what, index) for index in range(2))

    assert one.setup.scaling is other.setup.scaling
    assert one.setup.candidates is other.setup.candidates
    assert one.truth.modes is other.truth.modes
    assert one.surface is not other.surface


def test_a_link_moves_the_model_whose_steps_are_priced(arrays):
    workload = WorkloadSpec(local_epochs=0.5, memory=MemorySpec(margin=0.05))
    what = Experiment(fleet=EXPERIMENT.fleet, workload=workload)
    report, state, _ = played(arrays, ask_of(), experiment=what)

    latency_s = what.fleet[0].link.latency_s
    assert report.link.down_s == pytest.approx(latency_s + 8e-6 * RESNET18_BYTES / 50.0)
    assert report.link.up_s == pytest.approx(latency_s + 8e-6 * RESNET18_BYTES / 20.0)
    assert report.front.link_s == report.true_front.link_s == report.link.down_s + report.link.up_s
    assert (report.front.up_s, report.front.latency_s) == (report.link.up_s, latency_s)
    assert (report.front.encode_s, report.front.encode_j) == (report.link.encode_s, report.link.encode_j)
    assert report.front.encode_j > 0.0
    assert state.rested_at_s == pytest.approx(report.link.down_s + report.work_s + report.link.up_s)


def test_modes_are_planned_for_the_time_that_each_link_leaves(arrays):
    """The plan for boards of one kind with unlike uplinks against every mode of the true boards at every deadline."""
    uplinks = {"near": 200.0, "middle": 40.0, "far": 10.0}
    fleet = tuple(FleetEntry(device="orin-nano", name=n, link=LinkSpec(up_mbps=u)) for n, u in uplinks.items())
    what = Experiment(fleet=fleet, data=DataSpec(partition="iid"))
    ask = ask_of(policy="least-energy")
    fronts = {entry.name: played(arrays, ask, i, what)[0].true_front for i, entry in enumerate(fleet)}
    clients = [emulated.load_client(what, i) for i in range(len(fleet))]

    def least_j(deadline_s: float) -> float:
        total_j = 0.0
        for client in clients:
            link = client.setup.transfer(ask, None)
            truth = client.surface.select_rows(mask_above_floor(client.surface.modes))
            work_s = (client.setup.steps + WARM_UP_STEPS) * truth.step_s
            work_j = work_s * truth.power_w + client.truth.idle_w.min() * (deadline_s - work_s)
            in_time = link.down_s + work_s + link.up_s <= deadline_s * (1.0 + 1e-9)
            total_j += link.radio_j + float(work_j[in_time].min(initial=np.inf))
        return total_j

    planner = load_planner("least-energy")
    plan = planner(fronts, list(fronts), RoundGoal("least-energy", 0, None, {"max_slowdown": 1.1}))
    assert plan.deadline_s is not None
    assert plan.energy_j == pytest.approx(least_j(plan.deadline_s))
    others = [least_j(deadline_s) for deadline_s in np.linspace(1.0, 1.1, 200) * plan.maxn_round_s]
    assert plan.energy_j <= min(others) * (1.0 + 1e-9)
    found = {name: find_least_energy_point(front, plan.deadline_s) for name, front in fronts.items() if front}
    cheapest = {name: front.points[-1] for name, front in fronts.items() if front}
    assert (found["near"], found["middle"]) == (cheapest["near"], cheapest["middle"])
    assert found["far"].work_s < 0.95 * cheapest["far"].work_s


def test_a_part_in_a_second_mode_is_reported_and_remembered_as_one_of_the_round(tmp_path, arrays):
    """The board has two modes, knows both, and gets a deadline between them; the rest changes the mode."""
    experiment = replayed(tmp_path, slow_w=2.5)
    seat = emulated.load_client(experiment, 0)
    rows = zip(seat.truth.modes, seat.truth.step_s, seat.truth.power_w, strict=True)
    own = tuple(Measurement(mode, 40, float(t), float(w), switch_s=0.05) for mode, t, w in rows)
    goal = RoundGoal("balanced", 0, 1.5 * (2.0 + seat.setup.steps * float(seat.truth.step_s.min())))

    report, state, _ = played(arrays, ask_of(number=2, state=ClientState(own), goal=goal), experiment=experiment)

    assert report.decision.mix == ModeMix(report.mixed.mode, report.mixed.steps)
    assert report.mixed.step_s > 2 * report.measured.step_s
    assert report.steps == report.asked_steps == seat.setup.steps
    assert report.mixed.warm_up_s > 0 == report.measured.warm_up_s
    assert (report.mixed.switch_s, report.measured.switch_s) == (
        None,
        mode_change_s(report.mixed.mode, report.measured.mode),
    )
    assert state.measurements == (*own, report.mixed, report.measured)


def test_a_second_round_starts_from_what_the_first_one_left(arrays):
    first, state, _ = played(arrays, ask_of(goal=planned()))
    travelled = from_json(ClientState, to_json(state))
    assert travelled == state

    second, later, _ = played(arrays, ask_of(number=2, start_s=state.rested_at_s, state=travelled, goal=planned()))

    assert later.measurements == (*state.measurements, *second.parts)
    assert not {p.mode for p in second.probes} & {m.mode for m in state.measurements}
    assert first.prior_time_ape >= 0.03
    assert second.prior_time_ape is second.prior_power_ape is None
    assert second.measured != first.measured


def test_a_hot_board_that_starts_again_at_once_stays_hotter_than_one_that_rested(arrays):
    hot = ClientState(temperature_c=80.0, rested_at_s=100.0)
    ended_c = [
        played(arrays, ask_of(number=2, policy="maxn", state=hot, start_s=100.0 + rest_s))[1].temperature_c or 0.0
        for rest_s in (0.0, 60.0, 3600.0)
    ]
    assert 80.0 > ended_c[0] > ended_c[1] > ended_c[2] > 25.0


def test_the_true_front_is_the_whole_truth_with_warm_up(arrays):
    report, _, _ = played(arrays, ask_of(policy="maxn"))
    seat, front = emulated.load_client(EXPERIMENT, 0), report.true_front

    assert all(point.time_sd_log == 0.0 for point in front.points)
    for point in (*front.points, front.maxn):
        row = seat.truth.find_row(point.mode)
        assert point.work_s == pytest.approx((seat.setup.steps + WARM_UP_STEPS) * seat.truth.step_s[row])
        assert point.work_j == pytest.approx(point.work_s * seat.truth.power_w[row])


def test_of_the_true_fronts_of_ever_other_rounds_a_client_keeps_the_newest(arrays, monkeypatch):
    monkeypatch.setattr(emulated, "MAX_TRUE_FRONTS", 2)
    seat = emulated.load_client(EXPERIMENT, 0)
    reports = [played(arrays, ask_of(policy="maxn", up_share=share))[0] for share in (0.9, 0.8, 0.7, 0.6)]

    kept = [reports[-2].true_front, reports[-1].true_front]
    assert list(seat.true_fronts.values())[-2:] == kept
    before = len(seat.true_fronts)
    played(arrays, ask_of(policy="maxn", up_share=0.5))
    assert len(seat.true_fronts) == before


@pytest.mark.parametrize(("policy", "fits"), [("maxn", 0), ("balanced", 1)])
def test_a_client_that_forgets_measurements_fits_no_oftener_than_before(arrays, monkeypatch, policy, fits):
    monkeypatch.setattr("fedge.types.MOST_MEASUREMENTS", 3)
    fitted, fit = list[int](), prediction_requests.fit_predictors

    def count(predictors, seen):
        fitted.append(len(predictors))
        return fit(predictors, seen)

    monkeypatch.setattr(prediction_requests, "fit_predictors", count)
    what, state = EXPERIMENT.model_copy(update={"seed": 77}), ClientState()
    for number in range(1, 7):
        fitted.clear()
        ask = ask_of(number=number, policy=policy, state=state, start_s=state.rested_at_s)
        _, state, _ = played(arrays, ask, experiment=what)

    assert (len(state.measurements), sum(fitted)) == (3, fits)


def replayed(folder: Path, slow_w: float = 4.75) -> Experiment:
    """One board with two modes of a table; ``slow_w`` is the power of the slow one."""
    path = folder / "made-up.csv"
    path.write_text(
        "cores,cpu_khz,gpu_hz,mem_hz,batch_size,time_ms,power_w\n"
        "4,1479000,921600000,1600000000,16,812.5,9.25\n"
        f"2,1132800,460800000,800000000,16,2125,{slow_w}\n"
    )
    return EXPERIMENT.model_copy(update={"fleet": (FleetEntry(device="nano", truth=f"table:{path}"),)})


def test_a_replayed_table_is_what_the_board_measures(tmp_path, arrays):
    experiment = replayed(tmp_path).model_copy(update={"policy": PolicySpec(name="maxn")})

    report, _, _ = played(arrays, ask_of(policy="maxn"), experiment=experiment)

    assert report.measured.step_s == pytest.approx(0.8125, rel=0.05)
    assert report.measured.power_w == pytest.approx(9.25, rel=0.05)
    assert len(emulated.load_client(experiment, 0).truth.modes) == 2


def test_a_task_that_raises_is_an_answer_with_the_reason(tmp_path, monkeypatch, arrays):
    (tmp_path / "broken_task_module.py").write_text(BROKEN_TASK)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_task_module", raising=False)
    work = EXPERIMENT.workload.model_copy(update={"task": "broken_task_module:Broken"})

    answer, trained = emulated.answer_request(EXPERIMENT.model_copy(update={"workload": work}), 1, ask_of(), arrays)

    assert answer == ReplyMessage("nano-2", error="RuntimeError: the samples are gone")
    assert trained is None


def test_an_unknown_device_is_bad_input_here_and_an_error_on_the_wire():
    experiment = EXPERIMENT.model_copy(update={"fleet": (FleetEntry(device="pineapple"),)})

    with pytest.raises(BadInput, match=r"fleet\.device: got 'pineapple'"):
        emulated.load_client(experiment, 0)

    answer, _ = emulated.answer_request(experiment, 0, ask_of("front"), None)
    assert answer.board == "pineapple-1"
    assert answer.error.startswith("fleet.device: got 'pineapple'")


def told_by(index: int, count: int, factor: float = 1.0) -> tuple[Measurement, ...]:
    """What another board of the fleet measured in ``count`` modes, its times wrong by ``factor``."""
    seat = emulated.load_client(EXPERIMENT, index)
    rows = np.random.default_rng(3).permutation(len(seat.truth.modes))[:count]
    return tuple(
        Measurement(
            seat.truth.modes[int(row)],
            40,
            factor * float(seat.truth.step_s[row]),
            float(seat.truth.power_w[row]),
            board=seat.setup.board.name,
        )
        for row in rows
    )


def test_what_another_board_measured_lowers_the_error_and_stays_out_of_the_state(arrays):
    """Where a board tries nothing itself: its own trials teach it as much."""
    still = EXPERIMENT.model_copy(update={"exploration": ExplorationSpec(share=0.0)})
    alone, _, _ = played(arrays, ask_of(goal=planned()), experiment=still)
    report, state, _ = played(arrays, ask_of(goal=planned(), shared=told_by(1, 20)), experiment=still)

    assert (alone.shared_samples, report.shared_samples) == (0, 20)
    assert alone.own_samples == report.own_samples == 0
    assert report.time_ape < 0.3 * alone.time_ape
    assert state.measurements == report.parts
    assert all(measurement.board is None for measurement in state.measurements)


# Several clients at once

MIXED = Experiment.model_validate({
    "fleet": [
        {"device": "nano", "count": 2},
        {"device": "orin-nano"},
        {"device": "agx-xavier", "loader": {"workers": 1, "image_mpixel": 1.0}},
        {"device": "agx-orin-64gb", "serving": {"cost": "resnet50-imagenet", "rate_hz": 60, "latency_s": 0.8}},
        {"device": "xavier-nx", "memory_mb": 1500.0},
    ],
    "workload": {"local_epochs": 0.25, "batch_size": 16, "memory": {}},
    "data": {"partition": "iid"},
})  # fmt: skip


def fresh_clients(name: str) -> Experiment:
    """The mixed experiment with clients of its own, so that none finds predictions that were kept before."""
    return MIXED.model_copy(update={"name": name})


def assert_same_answers(answers: list[Answer], expected: list[Answer]) -> None:
    for (reply, trained), (reply_alone, trained_alone) in zip(answers, expected, strict=True):
        assert reply == reply_alone
        assert (trained is None) == (trained_alone is None)
        if trained is not None and trained_alone is not None:
            assert (trained.loss, trained.accuracy) == (trained_alone.loss, trained_alone.accuracy)
            assert list(trained.arrays) == list(trained_alone.arrays)
            for key, array in trained.arrays.items():
                assert (array.dtype, array.shape) == (trained_alone.arrays[key].dtype, trained_alone.arrays[key].shape)
                assert array.tobytes() == trained_alone.arrays[key].tobytes()


def answer_both(requests: dict[int, RequestMessage], arrays: NamedArrays, name: str) -> tuple[list[Answer], ...]:
    """The answers of clients together, and of each alone."""
    together, alone = fresh_clients(f"{name}-together"), fresh_clients(f"{name}-alone")
    tasks = [ClientTask(together, index, request, arrays) for index, request in requests.items()]
    return emulated.answer_together(tasks), [
        emulated.answer_request(alone, index, request, arrays) for index, request in requests.items()
    ]


def test_clients_together_answer_every_round_as_each_alone_to_the_last_byte(arrays):
    """Fronts, then two rounds of training, the second from what the first left and with measurements of a peer."""
    boards = range(len(list_boards(MIXED)))
    fronts, fronts_alone = answer_both({index: ask_of("front") for index in boards}, arrays, "fronts")
    assert_same_answers(fronts, fronts_alone)
    goals = {
        index: RoundGoal("balanced", 0, 2.0 * (reply.front.link_s + reply.front.maxn.work_s))
        for index, (reply, _) in zip(boards, fronts, strict=True)
        if reply.front is not None
    }
    assert list(goals) == list(boards)

    first, first_alone = answer_both({index: ask_of(goal=goals[index]) for index in boards}, arrays, "first")
    assert_same_answers(first, first_alone)
    assert all(reply.error is None and trained is not None for reply, trained in first)
    assert any(reply.report.probes for reply, _ in first if reply.report is not None)
    requests = {
        index: ask_of(number=2, start_s=300.0, state=reply.state, goal=goals[index])
        for index, (reply, _) in zip(boards, first, strict=True)
    }
    peer = first[1][0]
    told = tuple(dataclasses.replace(seen, board=peer.board) for seen in peer.state.measurements)
    requests[0] = dataclasses.replace(requests[0], shared=told)

    assert_same_answers(*answer_both(requests, arrays, "second"))


def test_requests_of_different_kinds_are_answered_together_as_each_alone(arrays):
    requests = {
        5: ask_of(policy="maxn"),
        0: RequestMessage("hello"),
        2: ask_of("front", policy="maxn"),
        1: ask_of(goal=planned(6.0, MIXED, 1)),
        3: ask_of("front"),
    }

    together, alone = answer_both(requests, arrays, "kinds")

    assert_same_answers(together, alone)
    assert [reply.board for reply, _ in together] == [list_boards(MIXED)[index].name for index in requests]


def test_a_client_whose_training_fails_leaves_the_others_as_they_are(arrays):
    requests = {index: ask_of() for index in range(3)}
    together = fresh_clients("untrained")
    tasks = [
        ClientTask(together, index, request, {"w": np.zeros(3)} if index == 1 else arrays)
        for index, request in requests.items()
    ]

    answers = emulated.answer_together(tasks)

    error = answers[1][0].error
    assert error.startswith("model arrays: got arrays called w; ")
    _, alone = answer_both({index: requests[index] for index in (0, 2)}, arrays, "trained")
    assert_same_answers([answers[0], answers[2]], alone)


@pytest.mark.parametrize("broken", [0, 2, 4])
def test_a_client_whose_prediction_fails_answers_with_the_error_and_leaves_the_others_as_they_are(arrays, broken):
    mode = emulated.load_client(MIXED, broken).setup.fastest_mode
    spoilt = ClientState((Measurement(mode, 40, float("nan"), 5.0),))
    requests = {index: ask_of() for index in (0, 1, 2, 4)}
    requests[3] = ask_of("front")
    requests[broken] = dataclasses.replace(requests[broken], state=spoilt)

    together, alone = answer_both(requests, arrays, f"broken-{broken}")

    assert_same_answers(together, alone)
    failed = {index for index, (reply, _) in zip(requests, together, strict=True) if reply.error is not None}
    assert failed == {broken}
    reply, trained = together[list(requests).index(broken)]
    assert (reply.state, reply.front, reply.report, trained) == (None, None, None, None)


@pytest.mark.parametrize("scatter", [1.0, 1.1, 1.25])
@pytest.mark.parametrize("policy", ["maxn", "balanced"])
def test_a_front_follows_what_the_board_measured_also_far_from_the_prior(policy, scatter):
    """Two measurements of the top mode, a tenth of its expected time, that scatter as on a board with other load."""
    seat = emulated.load_client(EXPERIMENT, 0)
    before = emulated.answer_request(EXPERIMENT, 0, ask_of("front", policy=policy), None)[0].front
    step_s = 0.1 * before.maxn.work_s / seat.setup.steps
    own = tuple(Measurement(seat.setup.fastest_mode, 40, step_s * factor, 5.0) for factor in (1.0, scatter))

    ask = ask_of("front", number=3, policy=policy, state=ClientState(own))
    front = emulated.answer_request(EXPERIMENT, 0, ask, None)[0].front

    assert front.maxn.work_s == pytest.approx(seat.setup.steps * step_s, rel=0.25)
