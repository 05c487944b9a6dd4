"""A campaign measures MAXN first, then what the explorer asks for, each once, whatever fails or stops in between."""

import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from fedge.characterisation import profiling_journal
from fedge.characterisation.board_profile import (
    CampaignStopped,
    ProfilingCampaign,
    ProfilingRequest,
    build_header,
    check_request,
)
from fedge.characterisation.profiling_journal import open_profiling_journal
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput, ModeNotSet
from fedge.modes import ALL_MODES, stack_modes
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.explorers.profiling_order import sort_high_to_low
from fedge.types import Measurement, Modes, PowerMode

SMALL = Modes(
    stack_modes(PowerMode(c, f, g, 1600.0) for c in (2, 4) for f in (710.4, 1479.0) for g in (460.8, 921.6)).knobs
)
TOP = PowerMode(4, 1479.0, 921.6, 1600.0)


def play(bench, wanted, path, stop_after: int | None = None):
    """Run a campaign, or ``stop_after`` modes of it; returns what its journal holds."""
    with open_profiling_journal(path, build_header(bench, wanted)) as journal:
        campaign = ProfilingCampaign(bench, wanted, journal)
        count = 0
        while (stop_after is None or count < stop_after) and (mode := campaign.choose_next_mode()) is not None:
            campaign.measure_and_record(mode)
            count += 1
        return journal.past


def broken(*modes: PowerMode):
    def before(mode):
        if mode in modes:
            raise ModeNotSet(f"{mode} did not stick")

    return before


@pytest.fixture
def small(fake):
    def make(**behaviour):
        board, bench = fake(SMALL, **behaviour)
        return board, dataclasses.replace(bench, knowledge=dataclasses.replace(bench.knowledge, maxn=TOP))

    return make


def test_all_modes_are_measured_once_maxn_first_then_falling(small, tmp_path):
    board, bench = small()

    past = play(bench, ProfilingRequest(ALL_MODES, "random"), tmp_path / "j")

    assert board.visits[0] == TOP
    assert board.visits[1:] == [mode for mode in sort_high_to_low(SMALL) if mode != TOP]
    assert [one.mode for one in past.done] == board.visits


@pytest.mark.parametrize("explorer", ["random", "latin", "spread"])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_so_many_different_modes_are_measured(small, tmp_path, explorer, count):
    board, bench = small()

    play(bench, ProfilingRequest(count, explorer), tmp_path / "j")

    assert len(board.visits) == len(set(board.visits)) == count
    assert board.visits[0] == TOP


@pytest.mark.parametrize("explorer", ["random", "latin", "spread"])
def test_stopping_after_any_mode_and_going_on_is_the_same(small, tmp_path, explorer):
    board, bench = small()
    whole = play(bench, ProfilingRequest(6, explorer), tmp_path / "whole")

    for stop in range(6):
        path = tmp_path / f"stopped-{stop}"
        one, bench = small()
        play(bench, ProfilingRequest(6, explorer), path, stop_after=stop)
        other, bench = small()
        past = play(bench, ProfilingRequest(6, explorer), path)
        assert one.visits + other.visits == board.visits
        assert [done.verdict for done in past.done] == [done.verdict for done in whole.done]


def test_a_mode_that_fails_is_written_down_and_left_out(small, tmp_path):
    board, bench = small(before=broken(SMALL[0], SMALL[3]))

    past = play(bench, ProfilingRequest(ALL_MODES, "random"), tmp_path / "j")

    assert {one.mode for one in past.failed} == {SMALL[0], SMALL[3]}
    assert all("did not stick" in one.reason for one in past.failed)
    assert len(past.done) == 6
    assert len(board.visits) == 8


class OneByOne:
    """An explorer that would learn from each mode first, and proposes the same ones again to who is told no more."""

    def __init__(self, candidates: Modes, knowledge: PriorKnowledge) -> None:
        self.left = list(candidates)

    def ask(self, count: int) -> Modes:
        return stack_modes([self.left.pop(0)] if self.left and count > 0 else [])

    def tell(self, measurements: Sequence[Measurement]) -> None:
        told = {measurement.mode for measurement in measurements}
        self.left = [mode for mode in self.left if mode not in told]


def test_an_explorer_of_one_mode_at_a_time_goes_on_after_a_mode_that_fails(small, tmp_path):
    board, bench = small(before=broken(SMALL[0], SMALL[3]))

    past = play(bench, ProfilingRequest(7, f"{__name__}:{OneByOne.__name__}"), tmp_path / "j")

    assert len(past.failed) == 2
    assert len(board.visits) == 7


def test_three_failures_in_a_row_stop_the_campaign_and_are_tried_again_later(small, tmp_path):
    board, bench = small(before=broken(*(mode for mode in SMALL if mode != TOP)))
    with pytest.raises(CampaignStopped, match=r"3 modes failed in a row, .* did not stick.* same command"):
        play(bench, ProfilingRequest(ALL_MODES, "random"), tmp_path / "j")
    assert len(board.visits) == 4

    mended, bench = small()
    past = play(bench, ProfilingRequest(ALL_MODES, "random"), tmp_path / "j")

    assert TOP not in mended.visits
    assert len(mended.visits) == 7
    assert not past.failed


def test_more_modes_than_there_are_and_unknown_explorers_are_refused(small):
    _, bench = small()

    check_request(bench, ProfilingRequest(8, "random"))
    check_request(bench, ProfilingRequest(ALL_MODES, "nosuch"))
    with pytest.raises(BadInput, match="--modes: got 9; from 1 to 8, or all"):
        check_request(bench, ProfilingRequest(9, "random"))
    with pytest.raises(BadInput, match="--explorer: got 'nosuch'"):
        check_request(bench, ProfilingRequest(5, "nosuch"))


def test_table_and_record_say_what_was_measured_and_how(small, tmp_path):
    _, bench = small(before=broken(SMALL[0]))
    wanted = ProfilingRequest(ALL_MODES, "random", seed=7)
    past = play(bench, wanted, tmp_path / "j")
    out = tmp_path / "nano" / "net.csv"
    out.parent.mkdir()

    profiling_journal.save_campaign(out, build_header(bench, wanted), past, finished=True)

    table = read_mode_table(out)
    assert list(table.modes) == [one.mode for one in past.done]
    assert table.step_s.tolist() == pytest.approx([one.verdict.step_s for one in past.done], rel=1e-11)
    told = json.loads(profiling_journal.profiling_record_path(out).read_text(encoding="utf-8"))
    assert told["label"] == "measured"
    assert told["total_power"] == "POM_5V_IN"
    assert (told["modes_wanted"], told["explorer"], told["seed"]) == ("all", "all", 7)
    assert told["method"]["target"] == wanted.rule.target
    assert [one["settled"] for one in told["modes"]] == [True] * 7
    assert told["seconds"] == pytest.approx(sum(one["seconds"] for one in told["modes"]))
    assert told["failed"][0]["reason"].endswith("did not stick")
    assert not list(out.parent.glob(".*"))


def test_the_record_keeps_the_date_of_the_last_measured_mode_of_a_real_board(small, tmp_path, monkeypatch):
    for emulated, date in ((False, "2026-05-02T09:00:00Z"), (True, None)):
        bench = dataclasses.replace(small()[1], emulated=emulated)
        wanted, path = ProfilingRequest(2, "random"), tmp_path / f"j-{emulated}"
        for day in (1, 2):
            monkeypatch.setattr("time.time", lambda day=day: datetime(2026, 5, day, 9, tzinfo=UTC).timestamp())
            play(bench, wanted, path, stop_after=1)
        monkeypatch.undo()
        past = play(bench, wanted, path)  # everything is measured: another start changes nothing

        assert profiling_journal.campaign_to_dict(build_header(bench, wanted), past, finished=True).get("date") == date


def test_nothing_is_written_of_nothing(small, tmp_path):
    _, bench = small()
    wanted = ProfilingRequest(2, "random")
    past = play(bench, wanted, tmp_path / "j", stop_after=0)

    profiling_journal.save_campaign(tmp_path / "t.csv", build_header(bench, wanted), past, finished=False)

    assert not (tmp_path / "t.csv").exists()
    assert not profiling_journal.profiling_record_path(tmp_path / "t.csv").exists()
