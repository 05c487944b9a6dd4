"""The live view shows the last round in a terminal, prints a line per round in a pipe, and reads only what is new."""

import dataclasses
from io import StringIO

from rich.console import Console

from experiments.report.run import live_terminal
from experiments.report.run.live_terminal import LiveView, print_run_summary, render_fleet
from experiments.spec.experiment_loader import load_experiment
from fedge import phases
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_reader import read_new_rounds, read_rows
from fedge.telemetry.store_records import WAITING, ClientRow, EventRow, RoundRow


def shown(renderable, width: int = 130) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue()


def summarised(summary, width: int = 130) -> str:
    console = Console(file=StringIO(), width=width)
    print_run_summary(console, summary)
    return console.file.getvalue()


def view_of(folder) -> str:
    rounds = read_rows(folder, RoundRow)
    clients = [row for row in read_rows(folder, ClientRow) if row.round == rounds[-1].round]
    return shown(render_fleet(load_experiment(folder / "run.yaml"), rounds, clients, 75.0))


def test_the_view_shows_the_fleet_and_every_board(make_run):
    text = view_of(make_run())
    for part in (
        "demo",
        "balanced",
        "75 s",
        "round 3/3",
        "accuracy 83.3 %",
        "20.0 s (deadline 22.0 s)",
        "energy 300 J",
    ):
        assert part in text
    line = next(line for line in text.splitlines() if line.startswith("nano-2"))
    assert line.split() == ["nano-2", "2/710/461/1600", "9.00", "s", "10.0", "W", "10.0", "%", "10.0", "%"]


def test_kinds_have_a_column_where_names_do_not_tell_them(make_run):
    text = view_of(make_run(fleet=[{"device": "tx2", "count": 1, "name": "shelf"}]))
    assert next(line for line in text.splitlines() if line.startswith("shelf-1")).split()[1] == "tx2"


def test_a_large_fleet_is_shown_by_kind(make_run):
    text = view_of(make_run(fleet=[{"device": "nano", "count": 30}, {"device": "tx2", "count": 5}], rounds=1))
    assert "nano-1 " not in text.replace("straggler", "")
    assert [line.split()[:2] for line in text.splitlines()[-2:]] == [["nano", "30"], ["tx2", "5"]]


def test_a_failed_board_is_a_line_with_its_reason(make_run, fail):
    text = view_of(make_run(rounds=2, change=fail))
    assert "failed: no answer" in text
    assert "2 failed" in " ".join(text.split())


def test_in_a_pipe_each_round_is_one_line(make_run):
    folder = make_run(rounds=1)
    console = Console(file=StringIO(), width=80)
    with LiveView(folder, load_experiment(folder / "run.yaml"), console) as live_view:
        live_view.refresh()
        RunTables(folder).append(read_rows(make_run("later"), RoundRow)[1:])
        live_view.refresh()
        live_view.refresh()
    lines = console.file.getvalue().splitlines()
    # The first round was there before: a resumed run does not tell it again.
    assert [line.split("  ")[0] for line in lines] == ["round 2/1", "round 3/1"]
    assert "time 20.0 s of 22.0 s" in lines[0]
    assert "(sum 200 J)" in lines[0]


def test_a_run_that_waits_for_its_boards_says_so_once(make_run, tmp_path):
    folder, said = tmp_path / "new", []
    folder.mkdir()
    listener = lambda name, announce: said.append(name) if announce else None  # noqa: E731
    phases.add_listener(listener)
    try:
        with LiveView(folder, load_experiment(make_run() / "run.yaml"), Console(file=StringIO())) as live_view:
            RunTables(folder).append([EventRow(0.0, 0, None, WAITING, "no board is free: they work for another")])
            live_view.refresh()
            live_view.refresh()
    finally:
        phases.remove_listener(listener)
    assert said == ["no board is free: they work for another"]


def test_the_tables_are_read_only_when_they_changed(make_run, monkeypatch):
    folder = make_run()
    reads = []
    for read in (read_rows, read_new_rounds):
        monkeypatch.setattr(
            live_terminal,
            read.__name__,
            lambda *given, read=read, **named: reads.append(given) or read(*given, **named),
        )
    with LiveView(folder, load_experiment(folder / "run.yaml"), Console(file=StringIO())) as live_view:
        for _ in range(5):
            live_view.refresh()
        assert len(reads) == 2
        RunTables(folder).append([dataclasses.replace(read_rows(folder, RoundRow)[-1], round=4)])
        live_view.refresh()
        assert len(reads) == 4


def test_in_a_terminal_the_view_is_drawn_and_the_cursor_given_back(make_run, tmp_path):
    folder = make_run()
    console = Console(file=StringIO(), force_terminal=True, width=130)
    experiment = load_experiment(folder / "run.yaml")
    with LiveView(folder, experiment, console) as live_view:
        live_view.refresh()
    assert "nano-2" in console.file.getvalue()
    assert console.file.getvalue().count("\x1b[?25l") == console.file.getvalue().count("\x1b[?25h") == 1
    empty = Console(file=StringIO(), force_terminal=True, width=130)
    with LiveView(tmp_path / "none-yet", experiment, empty):
        pass
    assert "waiting for the first round" in empty.file.getvalue()


def test_the_summary_names_the_headline_figures():
    summary = {
        "name": "demo",
        "policy": "balanced",
        "rounds": 3,
        "final_accuracy": 0.964,
        "energy_j": 19951.9,
        "saving_vs_maxn": 0.2,
        "oracle_saving_vs_maxn": 0.25,
        "saving_vs_maxn_parked": 0.06,
        "oracle_saving_vs_maxn_parked": 0.08,
        "compared_rounds": 3,
        "mean_round_s": 20.0,
        "round_vs_maxn": 1.25,
        "makespan_s": 258.5,
        "wall_s": 7.3,
        "late": 0,
        "failed": 2,
        "report": "/x/report.html",
    }
    lines = [" ".join(line.split()) for line in summarised(summary).splitlines()]
    assert lines == [
        "demo: balanced, 3 rounds",
        "accuracy 96.4 %",
        "energy 20.0 kJ",
        "saving vs MAXN 20.0 %, 80 % of the oracle's saving",
        "saving vs MAXN, low idle 6.0 %, 75 % of the oracle's saving",
        "mean round 20.0 s, 1.25 × MAXN's",
        "makespan 4 min 18 s on the fleet clock",
        "wall time 7.30 s",
        "late, failed, cancelled 0, 2, 0",
        "report /x/report.html",
    ]


def test_the_summary_tells_of_a_budget_of_staleness_and_of_resting_boards():
    summary = {
        "cancelled": 3,
        "energy_j": 78_000.0,
        "mean_staleness": 1.5,
        "refused": 2,
        "refused_energy_j": 1500.0,
        "resting_energy_j": 2500.0,
        "budget_j": 8e4,
        "budget_spent": 0.975,
        "link_mbps": 9.876,
    }
    summary["ended"] = "78000 J of 80000 J are spent; round 9 would take 9000 J"
    text = " ".join(summarised(summary).split())
    for part in (
        "late, failed, cancelled 0, 0, 3",
        "refused results of 2 clients' rounds (1.50 kJ), for what they held; see the events",
        "mean staleness 1.50 models",
        "energy 78.0 kJ, plus 2.50 kJ of idle boards",
        "energy budget 97.5 % of 80.0 kJ spent, 2.50 kJ of it by boards at rest",
        "ended 78000 J of 80000 J are spent; round 9",
        "links about 9.88 Mbit/s, estimated from the transfers",
    ):
        assert part in text


def test_boards_that_were_reduced_alike_share_a_line_that_says_until_when():
    why = "batch 16 -> 4: 1,999 MB predicted, 1,800 MB allowed"
    lowered = {f"nano-{i}": {"why": why, "round": 1} for i in range(1, 6)}
    lowered["tx2-1"] = {"why": "batch 16 -> 8: 900 MB predicted, 800 MB allowed", "round": 3}
    text = " ".join(summarised({"rounds": 3, "energy_j": 1.0, "lowered": lowered}).split())

    assert f"nano-1, nano-2, nano-3 and 2 more {why}, until round 1; tx2-1 batch 16 -> 8: 900 MB predicted" in text
    assert "until round 3" not in text


def test_cancelled_boards_are_marked_and_counted(make_run):
    def cancel(row):
        return dataclasses.replace(row, status="cancelled") if row.board == "nano-2" else row

    text = view_of(make_run(change=cancel))
    assert "3 of 9 boards 1 cancelled" in " ".join(text.split())
    assert next(line for line in text.splitlines() if line.startswith("nano-2")).split()[1] == "cancelled"
    many = view_of(make_run("many", fleet=[{"device": "nano", "count": 30}], rounds=1, change=cancel))
    assert "30 (1 cancelled)" in many


def test_a_real_board_that_was_cut_off_without_a_report_is_a_line_with_its_reason(make_run):
    def cut(row):
        nothing = {"cores": None, "power_w": None, "work_s": 0.0, "error": "no reply within 43 s"}
        return dataclasses.replace(row, status="late", **nothing) if row.board == "nano-2" else row

    assert "late: no reply within 43 s" in view_of(make_run(change=cut))
    many = view_of(make_run("many", fleet=[{"device": "nano", "count": 30}], rounds=1, change=cut))
    assert "23.0 s" in many


def test_a_run_at_maxn_has_no_share_of_the_oracles_saving():
    known = {"policy": "maxn", "oracle_saving_vs_maxn": 0.2, "oracle_saving_vs_maxn_parked": 0.08}
    text = summarised({**known, "saving_vs_maxn": None, "saving_vs_maxn_parked": -0.158})
    assert "saving vs MAXN – (the run itself is at MAXN)" in " ".join(text.split())
    assert "low idle −15.8 % (the run itself is at MAXN)" in " ".join(text.split())


def test_on_80_columns_no_cell_is_cut(make_run):
    folder = make_run(fleet=[{"device": "agx-orin-64gb", "count": 1}])
    rounds = read_rows(folder, RoundRow)
    clients = [row for row in read_rows(folder, ClientRow) if row.round == rounds[-1].round]
    text = shown(render_fleet(load_experiment(folder / "run.yaml"), rounds, clients, 75.0), width=80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("10.0") == 3
