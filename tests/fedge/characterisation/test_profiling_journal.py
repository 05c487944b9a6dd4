"""The journal survives whatever stops its process, and is continued only by the campaign that began it."""

import dataclasses
import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation.mode_measurement import SettledMode
from fedge.characterisation.profiling_journal import (
    ModeFailure,
    ProfilingHeader,
    campaign_to_dict,
    last_temperature_c,
    open_profiling_journal,
    parse_journal,
)
from fedge.characterisation.stability import StabilityRule, StabilityVerdict
from fedge.errors import BadInput
from fedge.types import PowerMode

HEADER = ProfilingHeader(
    board="nano",
    workload="net",
    batch_size=16,
    kind="train",
    emulated=True,
    label="estimated",
    source="here",
    total_power="VDD_IN",
    explorer="active",
    modes=3,
    seed=0,
    rule=dataclasses.asdict(StabilityRule()),
    software={"fedge": "1"},
)
MODES = [PowerMode(cores, 1000.0 / 3, 500.0, 1600.0) for cores in (1, 2, 3, 4)]


def settled(mode: PowerMode = MODES[0], se: float = 0.1 / 3) -> SettledMode:
    verdict = StabilityVerdict(True, 0.1 + 0.2, 10.0, se, 0.004, 40, 2, 1, "")
    return SettledMode(mode, verdict, False, 41.5, 1, 9.123, 91.5, 40.25)


def write_all(path) -> None:
    with open_profiling_journal(path, HEADER) as journal:
        journal.write_plan(MODES)
        journal.write_result(settled(MODES[0]))
        journal.write_failure(ModeFailure(MODES[1], "it is 'gone'\n", 0.5))
        journal.write_result(settled(MODES[2], se=math.inf))


def test_what_was_written_is_read_back_exactly(tmp_path):
    path = tmp_path / "t.journal"
    write_all(path)

    past, whole = parse_journal(path, path.read_bytes())

    assert past.header == HEADER
    assert past.planned == MODES
    assert past.done == [settled(MODES[0]), settled(MODES[2], se=math.inf)]
    assert past.failed == [ModeFailure(MODES[1], "it is 'gone'\n", 0.5)]
    assert past.remaining_modes == [MODES[3]]
    assert whole == path.stat().st_size
    assert last_temperature_c(path) == 40.25


def test_the_record_has_the_largest_peak_and_a_journal_of_before_peaks_were_measured_goes_on(tmp_path):
    path = tmp_path / "t.journal"
    write_all(path)
    path.write_text(path.read_text().replace(', "peak_mb": null', ""))

    with open_profiling_journal(path, HEADER) as journal:
        assert "peak_mb" not in campaign_to_dict(HEADER, journal.past, finished=False)
        journal.write_result(dataclasses.replace(settled(MODES[3]), peak_mb=250.5))
        journal.write_result(dataclasses.replace(settled(MODES[1]), peak_mb=240.0))

    past, _ = parse_journal(path, path.read_bytes())
    assert [one.peak_mb for one in past.done] == [None, None, 250.5, 240.0]
    assert campaign_to_dict(HEADER, past, finished=True)["peak_mb"] == 250.5


@pytest.mark.slow
def test_a_journal_cut_at_any_byte_is_a_prefix_that_can_be_continued(tmp_path, monkeypatch):
    """Every cut is tried: what is read is what was whole, and after going on the file is whole again."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # a thousand times would take long
    original = tmp_path / "whole.journal"
    write_all(original)
    raw = original.read_bytes()
    lines = raw.splitlines(keepends=True)
    for cut in range(len(raw) + 1):
        path = tmp_path / "cut.journal"
        path.write_bytes(raw[:cut])
        complete = raw[:cut].count(b"\n")
        with open_profiling_journal(path, HEADER) as journal:
            events = len(journal.past.done) + len(journal.past.failed)
            assert events == max(0, complete - 2)
            journal.write_result(settled(MODES[3]))
        assert path.read_bytes().startswith(b"".join(lines[: max(1, complete)]))
        assert parse_journal(path, path.read_bytes())[0].done[-1] == settled(MODES[3])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("board", "tx2"),
        ("workload", "other"),
        ("batch_size", 8),
        ("seed", 1),
        ("explorer", "random"),
        ("modes", 4),
        ("total_power", "VDD_GPU"),
        ("rule", {"target": 0.1}),
        ("software", {"fedge": "2"}),
    ],
)
def test_another_campaign_is_refused_with_the_difference(tmp_path, field, value):
    path = tmp_path / "t.journal"
    write_all(path)
    before = path.read_bytes()

    with pytest.raises(BadInput) as refused:
        open_profiling_journal(path, dataclasses.replace(HEADER, **{field: value}))

    assert refused.value.where.endswith(f": {field}")
    assert repr(getattr(HEADER, field)) in str(refused.value)
    assert repr(value) in str(refused.value)
    assert path.read_bytes() == before


@given(
    st.integers(0, 4),
    st.sampled_from([b"{}", b"no json", b"[1]", b'{"event":"mode"}', b'{"event":"other"}', b"\xff"]),
)
def test_damage_before_the_end_is_named_by_its_line(tmp_path_factory, place, line):
    path = tmp_path_factory.mktemp("damaged") / "t.journal"
    write_all(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[place] = line + b"\n"
    path.write_bytes(b"".join(lines))

    with pytest.raises(BadInput, match=f"line {place + 1}: got a line that makes no sense"):
        open_profiling_journal(path, HEADER)
    assert path.read_bytes() == b"".join(lines)


def test_a_journal_of_another_version_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "t.journal"
    write_all(path)
    first, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True)
    other = json.dumps(json.loads(first) | {"version": 99}) + "\n" + "".join(rest)
    path.write_text(other, encoding="utf-8")

    with pytest.raises(BadInput, match="line 1"):
        open_profiling_journal(path, HEADER)
    assert path.read_text(encoding="utf-8") == other


def test_modes_that_stopped_a_campaign_are_tried_again(tmp_path):
    path = tmp_path / "t.journal"
    with open_profiling_journal(path, HEADER) as journal:
        journal.write_plan(MODES)
        journal.write_failure(ModeFailure(MODES[0], "once"))
        journal.write_result(settled(MODES[1]))
        journal.write_failure(ModeFailure(MODES[2], "twice"))
        journal.write_failure(ModeFailure(MODES[3], "thrice"))
        journal.write_stop()
    with open_profiling_journal(path, HEADER) as journal:
        assert [one.mode for one in journal.past.failed] == [MODES[0]]
        assert journal.past.remaining_modes == [MODES[2], MODES[3]]
        assert journal.past.failed_in_a_row == 0
