"""The page holds the run's figures, needs nothing but itself, and survives runs that lack something."""

import dataclasses
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import yaml

from experiments.cli.finished_runs import report as write_run_report
from experiments.report.run.run_page import write_report
from fedge.errors import BadInput
from fedge.telemetry.store_records import EventRow, RoundRow


class Page(HTMLParser):
    """The page without its scripts: its text, the addresses it names, and the charts' data."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.raw = path.read_text(encoding="utf-8")
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self._inside: list[str] = []
        self.charts: dict[str, dict[str, Any]] = {}
        self.feed(self.raw)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action"}]

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" not in self._inside:
            if "style" not in self._inside:
                self.words.append(data)
        elif data.startswith("[{"):
            self.charts = {chart["key"]: chart for chart in json.loads(data)}

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(*folders: Path) -> Page:
    out = folders[0].parent / "page.html"
    write_report(folders, out)
    return Page(out)


def trace(chart: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in chart["data"] if one.get("name") == name)


def test_the_headline_holds_the_runs_figures(make_run):
    page = page_of(make_run(summary={"wall_s": 12.5}))
    assert "Final accuracy 83.3 %" in page.text
    assert "Energy of the fleet 300 J" in page.text
    # Rounds of 100 J; at MAXN 3 boards of 50 J, waiting low 40 J, the oracle 30 J.
    assert "Saving vs MAXN 33.3 % MAXN at work and while idle: 450 J" in page.text
    low = "Saving vs MAXN, low idle 16.7 % MAXN at work, lowest mode while idle: 360 J Mean"
    assert low in page.text
    assert "Share of the oracle's saving 83 % the oracle saves 40.0 % vs MAXN The same" in page.text
    assert "The same, low idle 67 % the oracle saves 25.0 % vs MAXN, low idle" in page.text
    assert "Mean round vs MAXN 1.25 × 20.0 s; MAXN: 16.0 s" in page.text
    assert "Makespan 60.0 s on the fleet clock; wall time 12.5 s" in page.text


def change_experiment(folder: Path, **changes: Any) -> Path:
    """Change fields of the run's experiment."""
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return folder


def test_the_head_names_partition_schedule_and_mods(make_run):
    schedule = {"name": "StepLR", "options": {"step_size": 5}}
    changed = {"data": {"partition": "dirichlet", "alpha": 0.3}, "workload": {"schedule": schedule}}
    mods = ["LocalDpMod", {"name": "message_size_mod"}]

    text = page_of(change_experiment(make_run(), **changed, mods=mods)).text

    assert "partition dirichlet (alpha 0.3)" in text
    assert "learning rate by StepLR (step_size 5)" in text
    assert "mods LocalDpMod, message_size_mod" in text


def test_a_tasks_own_metric_has_its_name_and_no_percent(make_run):
    folder = change_experiment(make_run(), workload={"metric": "explained variance"})
    page = page_of(folder)

    assert "Final explained variance 0.833" in page.text
    assert "accuracy" not in page.text.lower()
    chart = page.charts["accuracy-rounds"]
    assert chart["layout"]["yaxis"]["title"]["text"] == "test explained variance"
    assert trace(chart, "this run")["y"] == pytest.approx([0.5, 0.75, 1 - 0.5 / 3])
    both = page_of(folder, make_run("other")).text
    assert "metric 0.833 against 0.833" in both


def test_two_entries_of_one_device_show_their_own_origins(make_run):
    fleet = [{"device": "nano", "count": 2}, {"device": "nano", "count": 3, "name": "shelf"}]
    labels = {
        "nano": {"device": "nano", "count": 2, "truth": {"label": "estimated", "source": "data sheet"}},
        "shelf": {"device": "nano", "count": 3, "truth": {"label": "measured", "source": "a table"}},
    }
    text = page_of(make_run(fleet=fleet, summary={"labels": labels})).text
    assert "nano 2 estimated data sheet not recorded shelf (nano) 3 measured a table not recorded" in text


def test_a_board_named_by_an_alias_is_drawn_under_its_own_name(make_run):
    def known(row):
        return dataclasses.replace(row, device="agx-orin-64gb")

    page = page_of(make_run(fleet=[{"device": "agx-orin", "count": 2}], change=known))
    assert len(trace(page.charts["timeline"], "work: agx-orin-64gb")["x"]) == 6
    assert "agx-orin (agx-orin-64gb) 2 " in page.text


def test_accuracy_is_drawn_over_rounds_time_and_energy(make_run):
    charts = page_of(make_run()).charts
    assert trace(charts["accuracy-rounds"], "this run")["x"] == [1, 2, 3]
    assert trace(charts["accuracy-time"], "this run")["x"] == [20, 40, 60]
    assert trace(charts["accuracy-time"], "at MAXN")["x"] == [16, 32, 48]
    assert trace(charts["accuracy-energy"], "this run")["x"] == [100, 200, 300]
    assert trace(charts["accuracy-energy"], "at MAXN")["x"] == [150, 300, 450]
    assert trace(charts["accuracy-energy"], "MAXN, low idle")["x"] == [120, 240, 360]
    assert trace(charts["accuracy-energy"], "this run")["y"] == pytest.approx([50, 75, 83.3333])


def test_a_round_of_an_app_that_did_not_evaluate_is_left_out_of_the_accuracy(seeded, change_rounds):
    def thin(row: RoundRow) -> RoundRow:
        return dataclasses.replace(row, loss=None, accuracy=None if row.round == 2 else row.accuracy)

    runs = [change_rounds(seeded(seed), thin) for seed in (1, 2)]
    shown = page_of(runs[0])
    assert trace(shown.charts["accuracy-rounds"], "this run")["x"] == [1, 3]
    assert trace(shown.charts["accuracy-time"], "at MAXN")["x"] == [16.0, 48.0]
    assert trace(shown.charts["accuracy-energy"], "this run")["x"] == [100.0, 300.0]
    both = page_of(*runs)
    assert [line["x"] for line in both.charts["accuracy-time"]["data"]] == [[20.0, 60.0]] * 2
    assert both.charts["seeds-accuracy"]["data"][-1]["x"] == [1, 3]


def test_the_same_rounds_at_maxn_wait_for_the_same_evaluations(make_run, change_rounds):
    def evaluate(row: RoundRow) -> RoundRow:
        before_s = 5.0 * (row.round - 1)
        shifted = {"start_s": row.start_s + before_s, "end_s": row.end_s + before_s}
        return dataclasses.replace(row, **shifted, evaluation_s=5.0, evaluation_energy_j=1.0)

    shown = page_of(change_rounds(make_run(), evaluate)).charts["accuracy-time"]
    assert trace(shown, "this run")["x"] == [20.0, 45.0, 70.0]
    assert trace(shown, "at MAXN")["x"] == [16.0, 37.0, 58.0]


def test_the_timeline_holds_every_phase_and_the_slack(make_run):
    charts = page_of(make_run()).charts
    work = trace(charts["timeline"], "work: nano")
    assert (work["base"][:2], work["x"][:2], work["y"][:2]) == ([1, 1], [8, 9], [0, 1])
    assert work["base"][2] == 21
    last = charts["round"]["frames"][-1]
    assert last["label"] == "Round 3: 20.0 s, deadline 22.0 s"
    assert trace(last, "slack")["x"] == [12, 11, 10]
    assert trace(last, "straggler")["y"] == [2]
    assert trace(last, "deadline")["x"] == [22, 22]


def test_energy_is_stacked_and_marked_with_oracle_and_maxn(make_run):
    chart = page_of(make_run()).charts["energy-clients"]
    assert trace(chart, "work: nano")["x"] == [240, 270]
    assert trace(chart, "radio")["x"] == [3, 3, 3]
    assert trace(chart, "idle and waiting")["x"] == [72, 66, 60]
    # The marks of all boards add up to the headline's joules.
    assert trace(chart, "oracle")["x"] == [90, 90, 90]
    assert trace(chart, "MAXN")["x"] == [150, 150, 150]
    assert trace(chart, "MAXN, low idle")["x"] == [120, 120, 120]


def test_with_a_round_that_is_not_compared_the_figures_say_so_and_agree(make_run, fail):
    page = page_of(make_run(change=fail))
    assert "33.3 % MAXN at work and while idle: 300 J; over 2 of 3 rounds" in page.text
    assert (
        "Summed over 2 of 3 rounds: those in which every board finished on time and its true time and power are known."
        in page.text
    )
    chart = page.charts["energy-clients"]
    assert trace(chart, "work: nano")["x"] == [160, 180]
    assert sum(trace(chart, "MAXN")["x"]) == 300


def test_a_fleet_with_a_board_that_always_fails_has_bars_but_no_marks(make_run, fail):
    def dead(row):
        return dataclasses.replace(fail(dataclasses.replace(row, round=2)), round=row.round)

    page = page_of(make_run(change=dead))
    assert "Saving vs MAXN – MAXN at work and while idle: –" in page.text
    assert "Summed over all rounds." in page.text
    assert {one["type"] for one in page.charts["energy-clients"]["data"]} == {"bar"}


def test_modes_are_shares_of_the_boards_maximum(make_run):
    charts = page_of(make_run()).charts
    assert charts["modes-cores"]["data"][0]["z"][0] == [0.5, 0.5, 0.5]
    assert "921.6 MHz, 50 %" in charts["modes-gpu_mhz"]["data"][0]["hovertext"][0][0]


def test_the_error_of_every_round_is_drawn_and_over_all_modes_that_of_the_prior(make_run):
    charts = page_of(make_run()).charts
    error = trace(charts["error-time"], "nano")
    assert error["x"] == [1, 2, 3]
    assert error["y"] == pytest.approx([10, 10, 10])
    predicted = trace(charts["predicted-power"], "xavier-nx")
    assert (predicted["x"], predicted["y"]) == ([10, 10, 10], [9, 9, 9])
    learning = trace(charts["learning-time"], "nano")
    assert learning["x"] == [0, 1, 2, 3]
    assert learning["y"] == pytest.approx([40, 30, 15, 10])


def test_every_chart_is_valid_for_plotly(make_run, fail):
    for chart in page_of(make_run(change=fail)).charts.values():
        for shown in [chart, *chart["frames"]]:
            go.Figure(data=shown["data"], layout=shown["layout"])


def test_the_page_fetches_nothing(make_run):
    page = page_of(make_run())
    assert [address for address in page.addresses if not address.startswith("data:")] == []
    assert page.raw.count("plotly.js v") == 1
    assert "@import" not in page.raw.split("</style>")[0]
    assert "url(" not in page.raw.split("</style>")[0]


def test_failed_boards_break_nothing_and_are_told(make_run, fail):
    page = page_of(make_run(change=fail, rounds=2))
    assert "nano-1 failed – – – – – – 40.0 J – no answer" in page.text
    assert trace(page.charts["timeline"], "failed")["y"] == [0, 2]
    assert page.charts["modes-cores"]["data"][0]["z"][0] == [0.5, None]


def test_one_board_in_one_round_without_truth_makes_a_page(make_run):
    page = page_of(make_run(fleet=[{"device": "nano", "count": 1}], rounds=1, truth=False))
    assert "Saving vs MAXN –" in page.text
    assert [one["name"] for one in page.charts["energy-clients"]["data"]] == ["work: nano", "radio", "idle and waiting"]
    assert [one["name"] for one in page.charts["accuracy-time"]["data"]] == ["this run"]
    assert len(page.charts["round"]["frames"]) == 1


def test_a_run_without_deadlines_or_finite_loss_makes_a_page(make_run):
    def bare(row):
        return dataclasses.replace(row, deadline_s=None, loss=float("nan"), temperature_c=None)

    assert "Round 3" in page_of(make_run(change=bare)).charts["round"]["frames"][-1]["label"]


def test_names_and_messages_are_escaped(make_run):
    evil = "</script><img src=x onerror=alert(1)>"
    event = EventRow(at_s=1.0, round=1, board=evil, kind="late<b>", message=evil)
    fleet = [{"device": "nano", "count": 1, "name": evil}]

    def change(row):
        return dataclasses.replace(row, why=evil, error=evil)

    labels = {"nano": {"truth": {"label": evil, "source": evil}}}
    page = page_of(make_run(fleet=fleet, events=[event], change=change, summary={"labels": labels}))
    assert "img" not in page.tags
    assert page.charts["energy-clients"]["data"][0]["y"] == [
        "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;-1",
    ]
    assert evil in page.text


def test_a_large_fleet_is_thinned_and_says_so(make_run):
    fleet = [{"device": "nano", "count": 60}, {"device": "xavier-nx", "count": 60}]
    page = page_of(make_run(fleet=fleet, rounds=50))
    assert "Shown here: 40 of 120 boards" in page.text
    assert "the last 40 of 50 rounds" in page.text
    assert "100 of 120 boards" in page.text
    assert sum(len(one["x"]) for one in page.charts["timeline"]["data"] if one["type"] == "bar") <= 4 * 1_600
    assert sum(len(one["x"]) for one in page.charts["predicted-time"]["data"]) <= 3_002
    assert page.charts["energy-clients"]["data"][0]["y"] == ["nano"]
    assert len(page.raw) < 9e6


def test_rows_of_a_round_that_is_not_finished_are_left_out(make_run):
    folder = make_run(rounds=2)
    newer = make_run("newer", rounds=3)
    for part in (newer / "store" / "clients").iterdir():
        part.replace(folder / "store" / "clients" / part.name)
    assert len(trace(page_of(folder).charts["timeline"], "work: xavier-nx")["x"]) == 2


def test_several_runs_lie_side_by_side_in_one_colour_each(make_run):
    def cheaper(row):
        return dataclasses.replace(row, energy_j=row.energy_j / 2)

    page = page_of(make_run("a"), make_run("b", policy="maxn", rounds=2, change=cheaper))
    assert "2 runs side by side" in page.text
    assert "policy.name balanced maxn" in page.text
    names = [one["name"] for one in page.charts["accuracy-time"]["data"]]
    assert names == ["balanced, rounds 3", "maxn, rounds 2"]
    lines = [one["line"]["color"] for one in page.charts["accuracy-energy"]["data"]]
    assert page.charts["bars-energy"]["data"][0]["marker"]["color"] == lines
    assert page.charts["bars-energy"]["data"][0]["x"] == [300, 200]
    # Both reached 50 % in round 1; two rounds say of no later one that it holds.
    assert "time to 50.0 %" in page.text
    assert re.search(r'class="n best">200 J<', page.raw)
    assert re.search(r'class="n best">83.3 %<', page.raw)


def test_runs_of_one_name_are_told_apart_by_their_folder(make_run):
    page = page_of(make_run("a"), make_run("b"))
    names = [one["name"] for one in page.charts["accuracy-time"]["data"]]
    assert names == ["a", "b"]
    assert "same experiment, field by field" in page.text


def test_what_is_no_run_is_refused_in_one_line(make_run, tmp_path):
    with pytest.raises(BadInput, match=r"no such folder; the folder of a run"):
        write_run_report([tmp_path / "nowhere"], None)
    with pytest.raises(BadInput, match="without a finished round"):
        write_run_report([make_run(rounds=0)], None)
    with pytest.raises(BadInput, match="not a folder"):
        write_run_report([make_run("good")], tmp_path)


def test_cancelled_boards_are_marked_where_they_stopped_and_counted_in_a_chart(make_run):
    def cancel(row):
        return dataclasses.replace(row, status="cancelled", end_s=row.start_s + 6.0) if row.board == "nano-2" else row

    page = page_of(make_run(change=cancel))
    assert trace(page.charts["timeline"], "cancelled")["x"] == [6, 26, 46]
    assert trace(page.charts["asked"], "cancelled")["y"] == [1, 1, 1]
    assert trace(page.charts["asked"], "available")["y"] == [9, 9, 9]
    assert "Cancelled 3 board-rounds stopped" in page.text


def test_an_asynchronous_task_is_drawn_from_its_own_start_and_waiting_before_it(make_run):
    def overlapping(row):
        start_s = row.start_s - 5.0 * (row.board == "nano-1") * (row.round > 1)
        return dataclasses.replace(row, start_s=start_s, wait_s=2.0, staleness=1)

    page = page_of(make_run(change=overlapping, truth=False))
    second = page.charts["round"]["frames"][1]
    assert trace(second, "work: nano")["base"] == [-4, 1]
    assert trace(second, "wait")["base"] == [-7, -2, -2]
    assert second["layout"]["xaxis"]["range"][0] == -5
    assert "Mean staleness 1.00" in page.text
    assert {one["name"] for one in page.charts["timeline"]["data"] if "name" in one} >= {"completed a model"}
    assert "straggler" not in page.text
    assert "for whom the others waited" not in page.text
    assert "Saving vs MAXN" not in page.text


def test_minibatches_in_a_second_mode_have_a_picture_of_their_own(make_run):
    def mixed(row):
        return dataclasses.replace(row, mix_mode="2c/400/300/1600 MHz", mix_steps=30) if row.round == 2 else row

    charts = page_of(make_run(change=mixed)).charts
    assert charts["modes-mix"]["data"][0]["z"][0] == pytest.approx([0, 0.3, 0])
    assert "30 of 100 minibatches first in 2c/400/300/1600 MHz" in charts["modes-cores"]["data"][0]["hovertext"][0][1]
    assert "modes-mix" not in page_of(make_run("single")).charts


def test_batteries_are_drawn_from_what_they_begin_with_to_the_end_of_every_round(make_run):
    def drained(row):
        return dataclasses.replace(row, charge=0.9 - 0.1 * row.round) if row.board == "nano-1" else row

    battery = {"capacity_wh": 5, "charge": 0.9, "floor": 0.2}
    fleet = [{"device": "nano", "count": 1, "battery": battery}, {"device": "tx2", "count": 1}]
    chart = page_of(make_run(fleet=fleet, change=drained)).charts["charge"]
    assert [one["name"] for one in chart["data"]] == ["nano-1"]
    assert chart["data"][0]["x"] == [0, 20, 40, 60]
    assert chart["data"][0]["y"] == pytest.approx([90, 80, 70, 60])
    assert chart["layout"]["shapes"][0]["y0"] == 20


def test_a_board_that_failed_at_work_shows_the_work_until_then(make_run):
    def gone(row):
        stop = {"status": "failed", "error": "went away", "work_s": 3.0, "up_s": 0.0, "wait_s": 16.0}
        return dataclasses.replace(row, **stop) if row.board == "nano-1" else row

    chart = page_of(make_run(change=gone)).charts["timeline"]
    assert trace(chart, "work: nano")["x"][0] == 3
    assert (trace(chart, "failed")["base"][0], trace(chart, "failed")["x"][0]) == (4, 16)
    assert len(trace(chart, "wait")["x"]) == 6


def test_the_command_prints_where_the_report_lies(make_run, capsys, monkeypatch, tmp_path):
    one, two = make_run("a"), make_run("b")
    write_run_report([one], None)
    assert capsys.readouterr().out == f"{one / 'report.html'}\n"
    monkeypatch.chdir(tmp_path)
    write_run_report([one, two], None)
    assert (tmp_path / "comparison.html").is_file()
    write_run_report([one], tmp_path / "new" / "r.html")
    assert (tmp_path / "new" / "r.html").is_file()
    write_run_report([one], tmp_path / "new" / "r.html")  # its own earlier page may be replaced


@pytest.mark.parametrize("name", ["notes.txt", "pipe"])
def test_what_is_no_page_is_never_replaced_by_one(make_run, tmp_path, name):
    other = tmp_path / name
    if name == "pipe":
        os.mkfifo(other)
    else:
        other.write_text("mine", "utf-8")

    with pytest.raises(BadInput, match="which holds something else"):
        write_run_report([make_run("a")], other)

    assert other.is_fifo() if name == "pipe" else other.read_text("utf-8") == "mine"
