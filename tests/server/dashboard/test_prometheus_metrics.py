"""The metrics page: Prometheus can read it whatever boards are called, it stays small, and its counters only grow."""

import math
from dataclasses import replace

import pytest
from contracts import board_runs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from server.dashboard.prometheus_metrics import (
    MAX_BOARD_SERIES,
    MAX_KIND_LABELS,
    MAX_LABEL_LENGTH,
    ROUNDING,
    CounterTotals,
    build_families,
    make_exposition,
    render_exposition,
    to_label,
)
from server.dashboard.run_source import RunSource
from server.dashboard.views import BoardView, FleetView, RoundPoint, RunInfo, Summary

NOW_S = 1_800_000_000.0
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def board(name: str, device: str = "nano", **more) -> BoardView:
    return BoardView(name, device, **{"state": "idle", "power_w": 5.0, "energy_j": 10.0, **more})


def fleet(*boards: BoardView, **more) -> FleetView:
    return FleetView(RunInfo("test", "balanced", "local", "going", 10), boards=boards, **more)


def read(page: bytes) -> Series:
    """Every series, as Prometheus would have it; one that stands there twice is an error."""
    found: Series = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(page: bytes, name: str, **labels: str) -> float:
    return read(page)[name, tuple(sorted(labels.items()))]


def point(number: int, **more) -> RoundPoint:
    plain = {"selected": 3, "done": 1, "late": 1, "failed": 1, "cancelled": 0, "straggler": "", "deadline_s": None}
    spans = {"start_s": 0.0, "end_s": 9.0, "round_s": 9.0}
    return RoundPoint(number, **{**plain, **spans, "energy_j": 30.0, "accuracy": 0.5, "loss": 1.5, **more})


def test_a_boards_figures_stand_there_with_their_units():
    one = board("nano-1", power_w=7.5, temperature_c=41.0, progress=0.25, energy_j=120.0, seen_at_s=NOW_S - 3)
    page = render_exposition(fleet(one), NOW_S)

    def of(name: str) -> float:
        return value(page, name, board="nano-1", device="nano")

    assert of("fedge_board_power_watts") == 7.5
    assert of("fedge_board_temperature_celsius") == 41.0
    assert of("fedge_board_progress_ratio") == 0.25
    assert of("fedge_run_energy_joules") == 120.0
    assert of("fedge_board_energy_joules_total") == 120.0
    assert of("fedge_board_sample_age_seconds") == 3.0
    assert of("fedge_board_up") == 1.0


def test_the_runs_figures_stand_there_with_their_units():
    summary = Summary(
        round=2, accuracy=0.75, loss=0.5, clock_s=18.0, late=2, failed=1, saving=0.3, resting_energy_j=4.0
    )
    page = render_exposition(fleet(board("a"), summary=summary, rounds=(point(1), point(2, round_s=8.0))), NOW_S)

    assert value(page, "fedge_run_info", run="test", policy="balanced", backend="local", state="going") == 1
    assert value(page, "fedge_run_accuracy_ratio") == 0.75
    assert value(page, "fedge_rounds_total") == 2
    assert value(page, "fedge_round_duration_seconds") == 8.0
    assert value(page, "fedge_round_boards", status="selected") == 3
    assert value(page, "fedge_results_total", status="done") == 2
    assert value(page, "fedge_results_total", status="late") == 2
    assert value(page, "fedge_run_saving_ratio", baseline="maxn") == 0.3
    assert value(page, "fedge_boards", device="nano", state="idle") == 1


def test_what_is_not_known_is_left_out_and_not_zero():
    names = {name for name, _ in read(render_exposition(fleet(board("a", power_w=None)), NOW_S))}

    assert not names & {
        "fedge_board_power_watts",
        "fedge_board_temperature_celsius",
        "fedge_board_sample_age_seconds",
        "fedge_run_accuracy_ratio",
        "fedge_round_duration_seconds",
    }


def test_refused_messages_are_counted_by_reason_and_those_taken_are_not_among_them():
    one = board("a", refused={"taken": 9, "huge": 2, "made up": 1, "another": 1})
    page = render_exposition(fleet(one, refused={"foreign": 4, "huge": 2}), NOW_S)

    def of(reason: str) -> float:
        return value(page, "fedge_board_refused_messages_total", board="a", device="nano", reason=reason)

    assert (of("huge"), of("other")) == (2, 2)
    assert value(page, "fedge_refused_messages_total", reason="foreign") == 4
    assert b'reason="taken"' not in page


def test_every_metric_has_a_help_and_a_type_and_a_counter_is_called_one():
    lines = render_exposition(fleet(board("a", refused={"huge": 1}), rounds=(point(1),)), NOW_S).decode().splitlines()
    types = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    told = [line.split(maxsplit=3)[2] for line in lines if line.startswith("# HELP") and line.endswith(".")]

    assert set(types) == set(told)
    assert all(name.startswith("fedge_") for name in types)
    assert all((kind == "counter") == name.endswith("_total") for name, kind in types.items())
    assert len(told) == len(set(told))


def test_above_a_thousand_boards_the_figures_are_of_each_kind():
    def many(count: int) -> Series:
        kinds = ("nano", "orin")
        boards = [board(f"b-{i}", kinds[i % 2], temperature_c=float(i), seen_at_s=NOW_S - i) for i in range(count)]
        return read(render_exposition(fleet(*boards), NOW_S))

    each, kinds = many(MAX_BOARD_SERIES), many(MAX_BOARD_SERIES + 2)
    of_nano = (("board", ""), ("device", "nano"))

    assert sum(name == "fedge_board_power_watts" for name, _ in each) == MAX_BOARD_SERIES
    assert kinds["fedge_board_power_watts", of_nano] == 5.0 * 501
    assert kinds["fedge_run_energy_joules", of_nano] == 10.0 * 501
    assert kinds["fedge_board_temperature_celsius", of_nano] == 1000.0
    assert kinds["fedge_board_sample_age_seconds", of_nano] == 1000.0
    assert sum(name == "fedge_board_power_watts" for name, _ in kinds) == 2


HOSTILE = st.text(st.characters(), max_size=200) | st.sampled_from(
    ['"} 1\n', "\\", "a" * 500, "", "\n# HELP x y", "\x00", "\ud800", "other", "é" * 64, "a\r\nb", "\u2028"]
)
FIGURE = st.none() | st.floats()


@given(HOSTILE, HOSTILE, FIGURE, FIGURE, st.sampled_from([1, 40, 5000]), st.booleans(), st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_five_thousand_boards_of_any_names_stay_a_bounded_page_that_parses(
    name, device, power_w, energy_j, count, kinds, data
):
    refused = data.draw(st.dictionaries(HOSTILE, st.integers(0, 9), max_size=20))
    boards = tuple(
        BoardView(
            f"{name}{i}",
            f"{device}{i}" if kinds else device,
            power_w=power_w,
            temperature_c=power_w,
            energy_j=energy_j or 0.0,
            refused=refused,
            seen_at_s=power_w,
        )
        for i in range(count)
    )
    run = RunInfo(name, device, name, "going", 3)
    found = read(render_exposition(FleetView(run, boards=boards, refused=refused), NOW_S))

    series = MAX_BOARD_SERIES if count <= MAX_BOARD_SERIES else MAX_KIND_LABELS
    assert len(found) <= 20 * min(count, series) + 40 + 12 * MAX_KIND_LABELS
    assert all(len(text) <= MAX_LABEL_LENGTH for _, labels in found for _, text in labels)
    assert not any(math.isnan(number) or math.isinf(number) for number in found.values())


@given(HOSTILE, HOSTILE)
def test_two_names_that_differ_have_two_labels(one, other):
    assert (to_label(one) == to_label(other)) == (one == other)
    assert len(to_label(one)) <= MAX_LABEL_LENGTH
    to_label(one).encode("utf-8")


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=2, max_size=2), min_size=1, max_size=20))
def test_a_counter_never_goes_back_and_grows_by_what_a_run_adds(energies_j):
    totals, before, counted_j = CounterTotals(), 0.0, 0.0
    last_j = 0.0
    for first_j, second_j in energies_j:
        page = render_exposition(fleet(board("a", energy_j=first_j), board("b", energy_j=second_j)), NOW_S, totals)
        now = value(page, "fedge_board_energy_joules_total", board="a", device="nano")
        is_reset = first_j < last_j * (1 - ROUNDING)
        counted_j += first_j if is_reset else max(0.0, first_j - last_j)
        last_j = first_j if is_reset else max(first_j, last_j)
        assert now >= before
        assert now == pytest.approx(counted_j, rel=1e-9, abs=1e-6)
        assert value(page, "fedge_run_energy_joules", board="a", device="nano") == first_j
        before = now


def test_a_page_read_before_the_rounds_row_is_there_counts_the_energy_once(tmp_path):
    # 56.2 + (57.5 + 23.9) is larger than (56.2 + 57.5) + 23.9 in the last bit.
    joules = (56.2, 57.5, 23.9)
    rows = [board_runs.client(n, "nano-1", "nano", 0, energy_j=j) for n, j in enumerate(joules, 1)]
    tables, source, render = board_runs.begin(tmp_path / "run", 1), RunSource(tmp_path / "run"), make_exposition()

    def read_counter() -> float:
        return value(render(source.view()), "fedge_board_energy_joules_total", board="nano-1", device="nano")

    tables.append([rows[0], board_runs.round_of(1, rows[:1])])
    assert read_counter() == joules[0]
    tables.append([rows[1], board_runs.round_of(2, rows[1:2]), rows[2]])
    before_the_round_j = read_counter()
    tables.append([board_runs.round_of(3, rows[2:])])
    assert read_counter() == before_the_round_j == pytest.approx(sum(joules))


def test_a_resumed_run_counts_the_rounds_that_it_repeats_once(tmp_path):
    tables, source, render = board_runs.begin(tmp_path / "run", 1), RunSource(tmp_path / "run"), make_exposition()
    counters = {
        "fedge_board_energy_joules_total": {"board": "nano-1", "device": "nano"},
        "fedge_rounds_total": {},
        "fedge_results_total": {"status": "done"},
    }

    def read_counters() -> dict[str, float]:
        page = render(source.view())
        return {name: value(page, name, **labels) for name, labels in counters.items()}

    def run_round(number: int) -> None:
        rows = [board_runs.client(number, "nano-1", "nano", 0, energy_j=10.0 * number)]
        tables.append([*rows, board_runs.round_of(number, rows)])

    for number in (1, 2, 3):
        run_round(number)
    before = read_counters()
    assert list(before.values()) == [60.0, 3.0, 3.0]
    tables.forget_after(1)
    assert read_counters() == before
    run_round(2)
    assert read_counters() == before
    for number in (3, 4):
        run_round(number)
    assert list(read_counters().values()) == [100.0, 4.0, 4.0]


def test_another_run_is_added_whole_also_if_its_figures_are_larger():
    totals = CounterTotals()
    for store, joules in (("first", 10.0), ("second", 12.0)):
        page = render_exposition(
            replace(fleet(board("a", energy_j=joules)), run=RunInfo("test", store=store)), NOW_S, totals
        )

    assert value(page, "fedge_board_energy_joules_total", board="a", device="nano") == 22.0


def test_a_board_that_was_away_goes_on_where_it_was():
    totals = CounterTotals()
    for boards in ((board("a", energy_j=10.0),), (board("b"),), (board("a", energy_j=4.0),)):
        page = render_exposition(fleet(*boards), NOW_S, totals)

    assert value(page, "fedge_board_energy_joules_total", board="a", device="nano") == 14.0


def test_what_is_remembered_of_counters_is_bounded(monkeypatch):
    monkeypatch.setattr("server.dashboard.prometheus_metrics.MAX_COUNTERS", 50)
    totals = CounterTotals()
    for i in range(100):
        render_exposition(fleet(board(f"b-{i}", refused={"huge": 1})), NOW_S, totals)

    assert len(totals.last) == len(totals.before) == 50


def test_a_clock_that_was_set_back_makes_no_negative_age():
    page = render_exposition(fleet(board("a", seen_at_s=NOW_S + 100)), NOW_S)

    assert value(page, "fedge_board_sample_age_seconds", board="a", device="nano") == 0.0


def test_nothing_is_kept_in_prometheus_clients_own_registry():
    from prometheus_client import REGISTRY

    render_exposition(fleet(board("a")), NOW_S)

    assert not [name for name in REGISTRY._names_to_collectors if name.startswith("fedge_")]


def test_an_empty_fleet_has_a_page_too():
    found = {family.name: family for family in build_families(FleetView(), NOW_S)}

    assert found["fedge_run_info"].values == {("", "", "", "none"): 1.0}
    assert read(render_exposition(FleetView(), NOW_S))
    assert read(render_exposition(replace(FleetView(), problem="it is gone"), NOW_S))["fedge_page_problem", ()] == 1.0
