"""Every table as a file, and the quantiles of prediction errors."""

import csv
import dataclasses

import pytest

from experiments.cli.finished_runs import report as write_run_report
from experiments.report.run import board_sections, prediction_section
from experiments.report.run.loaded_runs import load_run
from experiments.report.run.run_page import write_report_tables
from fedge.errors import BadInput
from fedge.telemetry.store_records import EventRow


def test_the_quantiles_are_of_every_board_and_round(make_run):
    def worse(row):
        return dataclasses.replace(row, predicted_step_s=1.5 * row.step_s) if row.round == 3 else row

    found = prediction_section.error_quantile_table(load_run(make_run(change=worse)))
    nano = [cell.plain_text for cell in found.rows[0]]
    assert nano == ["nano", "time", "6", "10.0 %", "10.0 %", "50.0 %", "50.0 %", "50.0 %"]
    assert [cell.plain_text for cell in found.rows[2]][:4] == ["nano", "power", "6", "−10.0 %"]


def test_the_work_a_plan_asked_for_is_a_table_only_if_it_was_not_the_whole(make_run):
    def ask(row):
        part = {"step_share": 1.0, "encoding": "none"}
        if row.round == 2:
            part = {"step_share": 0.5, "encoding": "int8", "width": 0.5}
        return dataclasses.replace(row, **part)

    def ask_whole(row):
        return dataclasses.replace(row, step_share=1.0, encoding="none")

    run = load_run(make_run("parts", change=ask))
    rounds = len(run.rounds)
    cells = [cell.plain_text for cell in board_sections.asked_work_table(run).rows[0]]
    shares, others = ["0.5", f"{(rounds - 0.5) / rounds:.3g}", "1"], rounds - 1
    assert cells[1:] == [str(rounds), *shares, f"none x {others}, int8 x 1", f"1 x {others}, 0.5 x 1"]
    assert board_sections.asked_work_table(load_run(make_run("whole", change=ask_whole))).rows == ()
    assert board_sections.asked_work_table(load_run(make_run("old"))).rows == ()


def test_one_runs_tables_are_files_with_every_row(make_run, tmp_path):
    fleet = [{"device": "nano", "count": 120}]
    events = [EventRow(at_s=1.0, round=1, board="nano-1", kind="late", message=f"a_{i} & 5 %") for i in range(210)]
    write_report_tables([make_run(fleet=fleet, events=events)], tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    keys = ("boards", "events", "errors-by-measurements", "last-round", "prediction-quantiles")
    assert names <= {f"{key}.{end}" for key in keys for end in ("csv", "tex")}
    with (tmp_path / "out" / "last-round.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 120
    assert (rows[3]["board"], rows[3]["energy (J)"]) == ("nano-4", "129")
    assert (tmp_path / "out" / "events.tex").read_text(encoding="utf-8").count(r"a\_") == 210


def test_several_runs_tables_are_files_with_their_groups(seeded, tmp_path, capsys):
    write_run_report([seeded(1), seeded(2), seeded(1, "maxn"), seeded(2, "maxn")], tmp_path / "c.html", tmp_path / "t")
    assert (tmp_path / "t" / "over-seeds.csv").read_text(encoding="utf-8").splitlines()[1].startswith("balanced,2,")
    assert (tmp_path / "t" / "paired-differences.tex").is_file()
    assert f"{tmp_path / 't'}: 18 files" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_one_line(make_run, tmp_path):
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with pytest.raises(BadInput, match="a folder that can be written"):
        write_run_report([make_run()], tmp_path / "r.html", tmp_path / "taken")
