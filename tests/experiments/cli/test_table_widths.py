"""Whatever the width, on a terminal or in a pipe, a table keeps every word of every column, and breaks none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from contracts.launching import Launcher, run_here

EXPERIMENT = """\
name: office
rounds: 2
backend: local
fleet: [{device: nano, count: 1}, {device: xavier-nx, count: 1}]
workload: {local_epochs: 0.2}
"""
TABLE = "orin-nano/train/resnet18-imagenet.csv"
COMMANDS = f"""
doctor
devices list
devices show agx-orin
devices modes agx-orin
explain workload.memory
status run
query run "select board, round, energy_j from clients"
run exp.yaml --dry-run
knowledge list --knowledge k
knowledge show table --knowledge k
calibrate {TABLE} --folder calibrated
predict show m.safetensors
predict choose m.safetensors --max-power-w 12
predict pareto m.safetensors
layers digits-cnn
select-board --workload resnet18-imagenet --board orin-nano --board nano
place resnet18-imagenet --board agx-orin --batch-sizes 1,4
place-run
memory predict resnet18-imagenet
roofline resnet18-imagenet --board orin-nano
""".strip().splitlines()
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
FRAME = re.compile(r"[│┃━─┏┓┗┛┡┩╇┳╍…]+")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("widths")
    (made / "exp.yaml").write_text(EXPERIMENT, encoding="utf-8")
    profile = ("profile", "--board", "emulated:orin-nano", "--workload", "resnet18-imagenet", "--modes", "24")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for words in (
            ("run", "exp.yaml", "--folder", "run"),
            (*profile, "--explorer", "random", "--out", TABLE),
            ("knowledge", "import", TABLE, "--knowledge", "k"),
            ("predict", "fit", TABLE, "--out", "m.safetensors"),
        ):
            assert run_here(patch, *words) == 0
    return made


def list_words(text: str) -> set[str]:
    """Return the words, without frames, durations and dates, and the colon of a heading where rows are stacked."""
    words = {word.strip(":,") for word in FRAME.sub(" ", ESCAPE.sub("", text)).split()}
    return {word for word in words if not re.fullmatch(r"[-–]?|[0-9.]+|.*-[0-9]{8}-[0-9]{6}", word)}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_word_of_a_table_is_whole_at_every_width(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    fedge = Launcher(monkeypatch, capsys)
    words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]
    monkeypatch.setenv("COLUMNS", "1000")
    wide = fedge(*words)
    assert wide.code == 0, wide.err
    for terminal in (False, True):
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
        for columns in (80, 120):
            monkeypatch.setenv("COLUMNS", str(columns))
            narrow = fedge(*words).out
            assert list_words(wide.out) - list_words(narrow) == set(), f"{columns} columns, terminal: {terminal}"


@pytest.mark.parametrize("variable", ["NO_COLOR", None])
def test_colours_are_for_terminals_that_want_them(
    variable: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if variable is not None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv(variable, "1")

    coloured = re.search(r"\x1b\[[0-9;]*3[0-9]", Launcher(monkeypatch, capsys)("devices", "show", "nano").out)
    assert coloured is None
