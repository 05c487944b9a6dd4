"""What the page shows, built from rows and words: which of them counts, what is marked, what is told of a change."""

import dataclasses

import pytest
from contracts.board_runs import client, names, round_of
from hypothesis import given
from hypothesis import strategies as st

from fedge.telemetry.live_records import BoardProgress
from server.dashboard import views
from server.dashboard.views import BoardView, FleetView, PowerCurve, RunInfo, Summary, ViewChanges

GOING, REAL = RunInfo(state="going"), RunInfo(state="going", real=True)
DONE = views.select_fields(views.LastRow, client(3, "nano-1", "nano", 0))
LATE = dataclasses.replace(DONE, status="late", steps=60, error="not done in time")
UNFIT = dataclasses.replace(DONE, status="failed", error="out of memory", left_out=True)
TRAINING = BoardProgress("nano-1", 100.0, "training", round=4, steps=200, steps_done=50, mode="2c", power_w=7.5)


def tile(
    row: views.LastRow | None, told: BoardProgress | None = None, run: RunInfo = GOING, latest: int = 3
) -> BoardView:
    silent = told is not None and views.is_silent(told, run, 101.0)
    return views.board_view(views.TileInputs("nano-1", "nano", row, told, silent, latest))


@pytest.mark.parametrize(
    ("row", "report", "latest", "state", "mark", "progress"),
    [
        (DONE, TRAINING, 3, "training", "", 0.25),
        (LATE, TRAINING, 3, "training", "late", 0.25),
        (LATE, dataclasses.replace(TRAINING, round=3), 3, "late", "late", 0.6),
        (LATE, None, 4, "resting", "", None),
        (UNFIT, None, 4, "left-out", "", None),
        (None, None, 4, "resting", "", None),
        (None, None, 0, "unknown", "", None),
    ],
    ids=[
        "at work",
        "trouble stays marked",
        "a round's row is the last word",
        "not chosen",
        "nothing fits",
        "never chosen",
        "no round",
    ],
)
def test_a_tile_shows_the_newer_of_row_and_report(row, report, latest, state, mark, progress):
    found = tile(row, report, latest=latest)
    assert (found.state, found.mark, found.progress) == (state, mark, progress)
    if state == "training":
        assert (found.round, found.mode, found.power_w, found.seen_at_s) == (4, "2c", 7.5, 100.0)
    if state == "left-out":
        assert found.error == "out of memory"
    if state == "late":
        assert (found.error, found.told_s) == ("not done in time", LATE.end_s)


def test_a_real_board_that_fell_silent_is_offline_and_an_emulated_one_is_not():
    old = dataclasses.replace(TRAINING, at_s=101.0 - views.SILENT_AFTER_S - 1)
    found = tile(DONE, old, REAL)
    assert (found.state, found.mark, found.seen_at_s) == ("offline", "offline", old.at_s)
    assert found.power_w == DONE.power_w, "what it drew before it fell silent is not what it draws"
    assert tile(DONE, old, GOING).state == "training"


def test_the_summary_compares_only_rounds_that_can_be_compared():
    clean = round_of(1, [client(1, "nano-1", "nano", 0)])
    late = round_of(2, [client(2, "nano-1", "nano", 0, "late")])
    found = views.summarise_rounds([clean, late])
    assert (found.round, found.compared, found.late) == (2, 1, 1)
    assert found.saving == pytest.approx(1 - 1 / 1.25)
    assert found.saving_parked == pytest.approx(1 - 1 / 1.1)
    assert found.energy_j == clean.energy_j + late.energy_j
    assert views.summarise_rounds([late]).saving is None
    assert views.summarise_rounds([]) == Summary()


def test_errors_of_predictions_are_shares_of_what_was_measured():
    found = views.board_round(client(1, "nano-1", "nano", 0))
    assert (found.time_error, found.power_error) == (pytest.approx(0.1), pytest.approx(0.05))
    failed = views.board_round(client(1, "nano-1", "nano", 0, "failed"))
    assert (failed.time_error, failed.power_error, failed.mode) == (None, None, "")


def test_a_curve_from_reports_has_the_joules_of_the_rows():
    rows = [client(number, "nano-1", "nano", 3) for number in (1, 2)]
    curve = views.reported_curve(rows)
    joules = sum(span * power for span, power in zip(curve.span_s, curve.power_w, strict=True))
    whole = sum(row.work_j + row.radio_j + row.idle_w * (row.down_s + row.up_s + row.wait_s) for row in rows)
    assert joules == pytest.approx(whole)


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 60), st.none() | st.floats(0, 90)), max_size=200))
def test_thinning_keeps_the_joules_and_the_highest_temperature(parts):
    spans, powers, heat = zip(*parts, strict=True) if parts else ((), (), ())
    starts = tuple(sum(spans[:i]) for i in range(len(spans)))
    thin = views.thin_curve(PowerCurve(starts, spans, powers, heat), 7)
    assert len(thin.at_s) == min(7, len(parts))
    joules = sum(span * power for span, power in zip(spans, powers, strict=True))
    assert sum(s * p for s, p in zip(thin.span_s, thin.power_w, strict=True)) == pytest.approx(joules)
    known = [value for value in heat if value is not None]
    assert max((t for t in thin.temperature_c if t is not None), default=None) == max(known, default=None)


def test_a_run_file_of_any_shape_gives_what_can_be_read_of_it():
    record = {"name": "x", "rounds": 4, "policy": "maxn", "fleet": [{"device": "nano", "count": 2}, 5, {"count": 1}]}
    assert views.parse_fleet(record) == {"nano-1": "nano", "nano-2": "nano"}
    assert views.parse_fleet({"fleet": "nano"}) == {}
    info = views.run_info(record, "going", 1.0)
    assert (info.name, info.policy, info.rounds, info.real) == ("x", "maxn", 4, False)
    assert views.run_info({"rounds": "many", "policy": {"name": "balanced"}}, "none", None).policy == "balanced"
    assert info.metric == "accuracy"
    assert views.run_info({"workload": {"metric": "peak ratio"}}, "going", None).metric == "peak ratio"
    assert views.run_info({"workload": 3}, "going", None).metric == "accuracy"


def test_labels_tell_where_the_figures_come_from():
    labels = {"nano": {"count": 2, "truth": {"label": "measured", "source": "t"}, "prior": {"label": "estimated"}}}
    (found,) = views.parse_origins({**labels, "odd": 3})
    assert (found.entry, found.boards, found.truth, found.prior) == ("nano", 2, "measured", "estimated")


def fleet(power_w: float, rounds: int, boards: int = 3) -> FleetView:
    rows = [round_of(n, [client(n, "nano-1", "nano", 0)]) for n in range(1, rounds + 1)]
    tiles = tuple(BoardView(name, power_w=power_w if i == 0 else 1.0) for i, name in enumerate(names(boards)))
    return FleetView(rounds=tuple(map(views.round_point, rows)), boards=tiles, summary=views.summarise_rounds(rows))


def test_only_what_changed_is_told():
    found = views.compare_views(fleet(1.0, 2), fleet(2.0, 3))
    assert isinstance(found, ViewChanges)
    assert [board.name for board in found.boards] == ["nano-1"]
    assert [point.round for point in found.rounds] == [3]
    assert (found.run, found.origins, found.problem) == (None, None, None)
    assert found.summary.round == 3
    assert views.compare_views(fleet(1.0, 2), fleet(1.0, 2)) is None


@pytest.mark.parametrize("after", [fleet(1.0, 1), fleet(1.0, 2, boards=4)], ids=["fewer rounds", "another fleet"])
def test_where_things_vanish_or_come_everything_is_told_anew(after):
    assert views.compare_views(fleet(1.0, 2), after) is after


def test_a_tile_tells_latency_memory_and_how_far_predictions_were_off():
    served = dataclasses.replace(
        DONE, latency_p95_s=0.3, latency_budget_s=0.25, memory_mb=900.0, memory_limit_mb=1000.0, predicted_step_s=None
    )

    found = tile(served, TRAINING)

    assert (found.latency_p95_s, found.latency_budget_s) == (0.3, 0.25)
    assert (found.memory_mb, found.memory_limit_mb) == (900.0, 1000.0)
    assert (found.time_error, found.power_error) == (None, pytest.approx(0.05))
    assert (tile(None).latency_p95_s, tile(None).memory_mb, tile(None).power_error) == (None, None, None)
