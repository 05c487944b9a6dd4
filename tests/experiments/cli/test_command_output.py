"""Commands write where nothing is lost."""

import logging

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from experiments.cli.command_output import check_output, make_console, make_progress_console
from experiments.cli.main import app
from experiments.spec.experiment_loader import CONFIGS
from fedge.errors import BadInput


def test_a_new_file_and_earlier_output_may_be_written(tmp_path):
    page = tmp_path / "page.html"
    check_output("--html", page, "<!doctype html")
    page.write_text("<!DOCTYPE html><html></html>")

    check_output("--html", page, "<!doctype html")
    check_output("--html", None, "<!doctype html")


@pytest.mark.parametrize("content", ["", "{}"])
def test_a_file_that_begins_otherwise_is_kept(tmp_path, content):
    table = tmp_path / "table.csv"
    table.write_text(content)

    for path in (table, type(tmp_path)("/dev/null")):
        with pytest.raises(BadInput, match="holds something else"):
            check_output("--json", path, "[")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "gone.yaml", "--folder"),
        ("sweep", "gone.yaml", "--folder"),
        ("fleet", "run", "gone.yaml", "--folder"),
        ("characterise", "gone.yaml", "--folder"),
        ("calibrate", "gone.csv", "--folder"),
        ("topology", "gone", "--board", "nano", "--folder"),
        ("predict", "fit", "gone.csv", "--out"),
        ("export", "gone", "--to", "tensorboard", "--folder"),
        ("study", "fleet", "gone.yaml", "--out"),
        ("profile", "--workload", "gone", "--out"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_read(fedge, words):
    outcome = fedge(*words, "/proc/x")

    assert outcome.code == 2
    assert outcome.message.startswith(f"fedge: {words[-1]}: ")
    assert "(No such file or directory)" in outcome.message


def test_a_file_gets_every_line_whole_and_columns_are_obeyed(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    make_console().print("word " * 100)
    assert len(capsys.readouterr().out.splitlines()) == 1

    monkeypatch.setenv("COLUMNS", "40")
    assert make_console().width == 40


@pytest.mark.parametrize("words", [("rnu", "exp.yaml"), ("fleet", "statsu")])
def test_the_command_that_may_be_meant_is_suggested_once(words):
    done = CliRunner().invoke(app, list(words))

    assert done.exit_code == 2
    assert done.output.count("Did you mean") == 1


def test_a_word_that_is_no_command_finds_those_described_with_it():
    done = CliRunner().invoke(app, ["compare", "a", "b"])

    assert done.exit_code == 2
    assert "Did you mean sweep or report?" in done.output


@pytest.mark.parametrize(("options", "quiet"), [((), False), (("--quiet",), True)])
def test_progress_is_shown_unless_the_command_is_quiet(options, quiet):
    with get_command(app).make_context("fedge", [*options, "doctor"]):
        assert make_progress_console().quiet is quiet


@pytest.mark.parametrize("options", [(), ("--quiet",), ("--verbose",)])
def test_a_command_leaves_the_log_levels_of_the_program_that_it_runs_in(fedge, options):
    logger = logging.getLogger("fedge")
    before = logger.level

    assert fedge(*options, "devices", "list").code == 0

    assert logger.level == before


@pytest.mark.parametrize(
    "command", ["fleet logs", "fleet profile --workload resnet18-cifar10", f"sweep {CONFIGS}/policies-sweep.yaml"]
)
def test_a_folder_that_is_a_file_is_refused_with_its_option(fedge, tmp_path, command):
    file = tmp_path / "file"
    file.touch()

    done = fedge(*command.split(), "--folder", file)

    assert done.code == 2
    assert done.message.startswith(f"fedge: --folder: got {file}")


COMMANDS = """
concurrent run --out
concurrent eval --train-table gone.csv --out
fleet proxy --out
fleet firewall --account nobody --out
fleet status --out
layers digits-cnn --out
memory eval --data . --out
memory fit --data . --board b --out
place resnet50 --board agx-orin --html
place resnet50 --board agx-orin --out
place-run digits-cnn --out
predict eval --target gone.csv --out
predict eval --target gone.csv --html
predict pareto gone --out
predict pareto gone --html
reproduce accelerators --out
roofline resnet50-imagenet --board agx-orin --html
roofline resnet50-imagenet --board agx-orin --out
roofline bench --board agx-orin --out
select-board --workload resnet18-imagenet --out
study fleet gone.yaml --out
study fleet gone.yaml --html
study mode-choice --table gone.csv --out
study mode-choice --table gone.csv --html
topology digits-cnn --board tx2 --html
topology digits-cnn --board tx2 --out
""".strip().splitlines()


@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_replaces_a_table_or_computes_what_it_cannot_write(words, tmp_path):
    table, option = tmp_path / "mine.csv", words.split()[-1]
    table.write_text("cores,cpu_khz\n1,2\n")
    for path, why in (
        (table, "holds something else"),
        (tmp_path, "a file in a folder that exists"),
        (tmp_path / "none" / "x", "a file in a folder that exists"),
    ):
        refused = CliRunner().invoke(app, [*words.split(), str(path)]).exception

        assert isinstance(refused, BadInput)
        assert (refused.where, why in str(refused)) == (option, True), refused
    assert table.read_text() == "cores,cpu_khz\n1,2\n"
