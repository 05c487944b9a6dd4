"""Emulated boards with a loader: their true minibatches, what they measure, and boards without one as ever."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="boards train, which needs torch")

from fedge import workloads
from fedge.client import emulated
from fedge.client.client_setup import plan_conditions
from fedge.client.corrections import to_reference
from fedge.client.emulated import EmulatedClient, load_client
from fedge.errors import UnknownName
from fedge.experiment import Experiment, FleetEntry, LoaderSpec, ServingSpec, WorkloadSpec
from fedge.types import RoundGoal
from fedge.wire import RequestMessage, from_json, to_json

SLOW = LoaderSpec(workers=1, storage="sd", cached=0.0, image_mpixel=1.0)

POINTS, FIGURES = 64, (13.459100799398339, 350.57369177386647, 73.22914883151043, 515.0640138722482)
"""What a plain board offers: pinned, so that what is done for boards with a loader leaves others alone."""


def _experiment(loader: LoaderSpec | None, serving: ServingSpec | None = None) -> Experiment:
    entry = FleetEntry(device="agx-xavier", loader=loader, serving=serving)
    work = WorkloadSpec(task="digits-cnn", cost="mobilenetv3l-gld23k", local_epochs=1)
    return Experiment(backend="local", fleet=(entry,), workload=work)


def _seat(loader: LoaderSpec | None) -> EmulatedClient:
    return load_client(_experiment(loader), 0)


def _energy_row(seat: EmulatedClient, slowest: float = 1.05) -> int:
    """The mode of least energy that is at most so much slower than the fastest."""
    step_s, joules = seat.surface.step_s, seat.surface.step_s * seat.surface.power_w
    return int(np.argmin(np.where(step_s <= slowest * step_s.min(), joules, np.inf)))


def test_a_board_without_a_loader_is_what_it_was_with_one_left_out() -> None:
    plain, slow = _seat(None), _seat(SLOW)

    assert slow.loader is not None
    assert plain.loader is None
    np.testing.assert_array_equal(plain.surface.step_s, slow.loader.bare.step_s)
    np.testing.assert_array_equal(plain.surface.power_w, slow.loader.bare.power_w)
    np.testing.assert_array_equal(plain.surface.idle_w, slow.surface.idle_w)


def test_boards_without_a_loader_offer_what_they_always_offered() -> None:
    answer = emulated.answer_request(
        _experiment(None), 0, RequestMessage("front", policy="balanced", model_bytes=1_000_000), None
    )[0]

    assert answer.front is not None
    assert len(answer.front.points) == POINTS
    first, last = answer.front.points[0], answer.front.points[-1]
    assert (first.work_s, first.work_j, last.work_s, last.work_j) == pytest.approx(FIGURES, rel=1e-9)


def test_true_minibatches_hold_their_stalls_in_every_mode() -> None:
    plain, slow = _seat(None), _seat(SLOW)

    assert slow.loader is not None
    assert (slow.surface.step_s >= plain.surface.step_s * (1 - 1e-9)).all()
    many = slow.surface.modes.knobs[:, 0] >= 4  # on few cores a loader slows the computing itself as well
    assert slow.surface.stall_share is not None
    assert (slow.surface.stall_share[many & (slow.surface.step_s > 1.2 * plain.surface.step_s)] > 0).all()
    assert (slow.surface.power_w >= slow.surface.idle_w).all()
    assert len(slow.truth.modes) == slow.candidate_mask.sum()


def test_a_board_that_waits_saves_with_a_slower_gpu_what_another_must_spend() -> None:
    plain, slow = _seat(None), _seat(SLOW)

    waits, works = (seat.surface.modes[_energy_row(seat)] for seat in (slow, plain))

    assert waits.gpu_mhz < works.gpu_mhz


def test_a_round_measures_its_stalls_and_chooses_with_them() -> None:
    experiment = _experiment(SLOW)
    seat = load_client(experiment, 0)
    maxn_s = float(seat.surface.step_s[seat.surface.find_row(seat.kind.spec.maxn)])
    goal = RoundGoal("least-energy-within-deadline", seat.setup.steps, deadline_s=1.3 * (seat.setup.steps + 3) * maxn_s)
    ask = RequestMessage("train", 1, 0.0, goal.policy, goal=goal, model_bytes=1_000_000)

    answer, _ = emulated.answer_request(
        experiment, 0, ask, workloads.load_experiment_task(experiment).initial_arrays(1)
    )

    assert answer.error is None
    assert answer.report is not None
    assert answer.state is not None
    assert seat.surface.stall_share is not None
    for part in answer.report.parts:
        waits = seat.surface.stall_share[seat.surface.find_row(part.mode)]
        assert part.stall_s == pytest.approx(waits * part.step_s)
    assert any(part.stall_s > 0 for part in answer.report.parts)
    assert answer.report.prior_time_ape is not None
    assert answer.report.prior_time_ape < 0.4
    assert from_json(type(answer.state), to_json(answer.state)) == answer.state


def test_loading_at_another_batch_size_is_that_of_its_samples() -> None:
    load = _seat(SLOW).loader
    assert load is not None

    half = load.at_scale(8, 0.5)

    assert load.surface.stall_share is not None
    waits = load.surface.stall_share > 0.2
    np.testing.assert_allclose(half.surface.step_s[waits], 0.5 * load.surface.step_s[waits], rtol=0.02)


def test_a_storage_that_nobody_emulates_is_told_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match="nvme"):
        _seat(LoaderSpec(workers=1, storage="floppy"))


def test_the_corrections_of_a_loader_and_of_a_service_beside_it_compose() -> None:
    """What is measured beside both becomes, correction by correction, the step that computes alone."""
    serving = ServingSpec(cost="mobilenetv3l-gld23k", rate_hz=20, latency_s=4)
    experiment = _experiment(SLOW, serving)
    client = load_client(experiment, 0)
    assert client.loader is not None
    ask = RequestMessage("train", 1, 0.0, "maxn", model_bytes=1_000_000)

    answer, _ = emulated.answer_request(
        experiment, 0, ask, workloads.load_experiment_task(experiment).initial_arrays(1)
    )

    assert answer.error is None
    assert answer.report is not None
    seen = answer.report.measured
    row = client.surface.find_row(seen.mode)
    assert seen.service is not None
    assert seen.step_s > 1.05 * client.surface.step_s[row]  # requests are served between the steps
    assert seen.stall_s == pytest.approx(client.surface.stall_share[row] * client.surface.step_s[row], rel=0.06)
    conditions = plan_conditions(client.setup, ask, None)
    _, (alone,) = to_reference(conditions.corrections, [seen])
    assert (alone.service, alone.stall_s) == (None, 0.0)
    assert alone.step_s == pytest.approx(client.loader.bare.step_s[row], rel=0.08)
    assert alone.power_w == pytest.approx(client.loader.bare.power_w[row], rel=0.08)
