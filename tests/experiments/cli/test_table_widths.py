"""Whatever the width, on a terminal or in a pipe, a table keeps every word of every column, and breaks none."""

import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
reproduce
reproduce accelerators
""".strip().splitlines()
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
FAINT = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0367]|9[0-7]|4[0-7])(?:;[0-9]+)*m")
"""Black, yellow, cyan, white and bright letters, and any background: hard to see on light or on dark."""
DARK, LIGHT = "15;0", "0;15"
"""COLORFGBG, by which a terminal tells its colours."""
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
    words = {word.strip(":,") for word in FRAME.sub(" ", text).split()}
    return {word for word in words if not re.fullmatch(r"[-–]?|[0-9.]+|.*-[0-9]{8}-[0-9]{6}", word)}


def show_on_terminal(words: Sequence[str], columns: int, background: str) -> str:
    """Run a command on a terminal of its own, 24 lines high; what it wrote there, colours and cursor moves included."""
    pid, terminal = pty.fork()
    if pid == 0:
        code = 1
        try:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.environ.update(TERM="xterm-256color", COLORFGBG=background)
            os.environ.pop("COLUMNS", None)
            sys.stdout, sys.stderr = (os.fdopen(fd, "w") for fd in (1, 2))
            with pytest.MonkeyPatch.context() as patch:
                code = run_here(patch, *words)
        except BaseException:  # noqa: BLE001  else the child would go on with the tests
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    pieces = []
    with suppress(OSError):  # the kernel's way to say that nobody writes any more
        while piece := os.read(terminal, 65536):
            pieces.append(piece)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, b"".join(pieces)
    return b"".join(pieces).decode()


def list_lines(shown: str, columns: int) -> Iterator[str]:
    """Yield the lines of a terminal, which breaks those that are too long anywhere."""
    for line in ESCAPE.sub("", shown).replace("\r\n", "\n").split("\n"):
        yield from (line[start : start + columns] for start in range(0, max(1, len(line)), columns))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_word_of_a_table_is_whole_on_every_terminal(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = shlex.split(command)
    monkeypatch.setenv("COLUMNS", "1000")
    wide = Launcher(monkeypatch, capsys)(*words)
    assert wide.code == 0, wide.err
    for columns, background in ((80, DARK), (120, LIGHT)):
        shown = show_on_terminal(words, columns, background)
        whole = {word for word in list_words(wide.out) if len(word) <= columns}
        assert whole - list_words("\n".join(list_lines(shown, columns))) == set(), f"{columns} columns:\n{shown}"
        assert FAINT.findall(shown) == [], "a colour that one background swallows"


@pytest.mark.parametrize("variable", ["NO_COLOR", None])
def test_colours_are_for_terminals_that_want_them(variable, monkeypatch, capsys):
    if variable is not None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv(variable, "1")

    coloured = re.search(r"\x1b\[[0-9;]*3[0-9]", Launcher(monkeypatch, capsys)("devices", "show", "nano").out)
    assert coloured is None
