"""A real board is put on the bench from its device, its trainer and its thermometer, and measured like any other."""

from __future__ import annotations

import pytest

from fedge.characterisation.board_profile import ProfilingCampaign, ProfilingRequest, build_header
from fedge.characterisation.profiling_journal import open_profiling_journal
from fedge.characterisation.worker_bench import build_real_bench, resolve_workload
from fedge.clock import SimulatedClock
from fedge.costs.cost_priors import build_priors
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.types import Workload


@pytest.fixture
def bench(fake):
    board, _ = fake()
    board.total_power = "POM_5V_IN + EXTRA"
    work = resolve_workload("resnet18-imagenet", None)
    one = build_real_bench(
        board,
        work,
        board.done.append,
        lambda: board.temperature_c,
        clock=board.clock,
        seed=3,
        software={"torch": "1.10"},
    )
    return board, one


def test_a_campaign_runs_the_trainer_and_says_that_it_measured(bench, tmp_path):
    board, one = bench
    wanted = ProfilingRequest(4, "active", seed=3)
    header = build_header(one, wanted)
    with open_profiling_journal(tmp_path / "j", header) as journal:
        campaign = ProfilingCampaign(one, wanted, journal)
        while (mode := campaign.choose_next_mode()) is not None:
            campaign.measure_and_record(mode)
        done = journal.past.done

    assert len(done) == 4
    assert done[0].mode == one.device.spec.maxn
    assert sum(board.done) == sum(board.chunks) > 0
    assert (header.label, header.emulated, header.total_power) == ("measured", False, "POM_5V_IN + EXTRA")
    assert header.software.keys() == {"fedge", "torch"}


def test_its_modes_keep_it_reachable_unless_others_are_given(bench, fake):
    _, one = bench
    assert one.candidates.knobs[:, 0].min() >= 2
    assert one.candidates.knobs[:, 1].min() >= 400

    board, _ = fake()
    allowed = one.candidates.__class__(one.candidates.knobs[:5])
    narrow = build_real_bench(
        board, Workload("net", 4), board.done.append, lambda: None, clock=SimulatedClock(), candidates=allowed
    )
    assert len(narrow.candidates) == 5
    assert narrow.total_power == board.spec.total_power


@pytest.mark.parametrize("batch_size", [16, 64])
def test_what_is_believed_beforehand_is_of_the_batch_size_that_is_measured(fake, batch_size):
    board, _ = fake()
    work = resolve_workload("resnet18-imagenet", batch_size)
    known = build_real_bench(board, work, board.done.append, lambda: None, clock=SimulatedClock()).knowledge
    wanted = build_priors(board.spec, work.name, load_catalogue(), batch_size=batch_size, layered=False)
    assert [p.time.tolist() for p in known.priors] == [p.coefficients.time.tolist() for p in wanted]


def test_a_workload_has_its_own_batch_size_or_must_be_given_one():
    assert resolve_workload("resnet18-imagenet", None) == Workload("resnet18-imagenet", 16)
    assert resolve_workload("mine", 4) == Workload("mine", 4)
    with pytest.raises(BadInput, match="--batch-size: got nothing"):
        resolve_workload("mine", None)
    with pytest.raises(BadInput, match="--batch-size: got 0"):
        resolve_workload("mine", 0)
