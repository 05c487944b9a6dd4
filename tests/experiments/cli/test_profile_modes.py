"""``fedge profile`` writes a table that everything else reads, and may be killed at any point and started again."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli.command_output import warn
from experiments.cli.profile_commands import show_progress
from fedge.characterisation import board_profile, profiling_journal
from fedge.characterisation import profiling_journal as journals
from fedge.characterisation.board_profile import ProfileOptions
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput, ModeNotSet

WORKLOAD = "resnet18-imagenet"
MODES = 6


@pytest.fixture
def out(tmp_path: Path) -> Path:
    path = tmp_path / "orin-nano" / "train" / f"{WORKLOAD}.csv"
    path.parent.mkdir(parents=True)
    return path


def asked(out: Path, **more) -> ProfileOptions:
    return ProfileOptions(
        **{"board": "emulated:orin-nano", "workload": WORKLOAD, "out": out, "modes": str(MODES), **more}
    )


def profile(out: Path, **more) -> None:
    board_profile.profile_board(asked(out, **more), note=warn, show_progress=show_progress)


def options(out: Path, explorer: str = "random") -> list[str]:
    given = {
        "--board": "emulated:orin-nano",
        "--workload": WORKLOAD,
        "--modes": MODES,
        "--explorer": explorer,
        "--out": out,
    }
    return ["profile", *(str(word) for pair in given.items() for word in pair)]


# What it leaves -------------------------------------------------------------------------------------------------------


def test_a_table_its_record_and_one_line_are_left(fedge, out):
    done = fedge(*options(out))

    assert done.code == 0, done.err
    assert done.err == ""
    assert done.out.startswith(f"written: {out}, {MODES} modes; ")
    assert done.out.rstrip().endswith("kJ")
    assert done.out.count("\n") == 1
    table = read_mode_table(out)
    assert len(table.modes) == MODES
    assert (table.device, table.workload, table.batch_size) == ("orin-nano", WORKLOAD, 16)
    told = json.loads(profiling_journal.profiling_record_path(out).read_text(encoding="utf-8"))
    assert (told["label"], table.label, told["emulated"]) == ("calibrated", "calibrated", True)
    assert told["board"] == "orin-nano"
    assert told["total_power"] == "VDD_IN"
    assert told["finished"]


def test_json_says_the_same_to_a_program(fedge, out):
    told = json.loads(fedge(*options(out), "--json").out)

    written = json.loads(profiling_journal.profiling_record_path(out).read_text(encoding="utf-8"))
    assert told["file"] == str(out)
    assert (told["modes"], told["new"], told["failed"]) == (MODES, MODES, 0)
    assert (told["board_s"], told["board_j"]) == (written["seconds"], written["joules"])


def test_predict_fit_learns_from_the_table(fedge, out, tmp_path):
    fedge(*options(out))

    done = fedge("predict", "fit", out, "--out", tmp_path / "m.safetensors", "--json")

    assert done.code == 0, done.err
    assert json.loads(done.out)["learnt_from"]["modes"] == MODES


def test_a_bare_name_is_emulated_too(out):
    profile(out, board="nano", modes="1")

    assert json.loads(profiling_journal.profiling_record_path(out).read_text(encoding="utf-8"))["board"] == "nano"


def test_the_seed_fixes_the_table(out, tmp_path):
    tables = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        path = tmp_path / f"{name}.csv"
        profile(path, seed=seed)
        tables.append(path.read_bytes())

    assert tables[0] == tables[1] != tables[2]


# What it refuses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"modes": "0"}, "--modes: got '0'; a whole number above 0, or all"),
        ({"modes": "some"}, "--modes: got 'some'"),
        ({"modes": "99999"}, "--modes: got 99999; from 1 to"),
        ({"explorer": "nosuch"}, "--explorer: got 'nosuch'; known"),
        ({"workload": "nosuch"}, "--workload: got 'nosuch'; a classifier of torchvision"),
        ({"batch_size": 0}, "--batch-size: got 0; a whole number"),
        ({"board": "here", "kind": "infer"}, "--board here: got "),
        ({"board": "emulated:nosuch"}, "--board: got 'nosuch'; known"),
        ({"board": "here"}, "--board here: got .*; emulated:NAME"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_written(out, more, words):
    with pytest.raises(BadInput, match=words):
        profile(out, **more)

    assert list(out.parent.iterdir()) == []


def test_a_table_without_a_journal_is_never_overwritten(out):
    out.write_text("measured by hand", encoding="utf-8")

    with pytest.raises(BadInput, match=r"--out: got .* exists without a journal"):
        profile(out)
    assert out.read_text(encoding="utf-8") == "measured by hand"


def test_the_folder_is_made_unless_the_input_is_wrong_or_a_file_is_in_its_place(tmp_path):
    with pytest.raises(BadInput, match="--board"):
        profile(tmp_path / "new" / "train" / "t.csv", board="emulated:nosuch")
    assert not (tmp_path / "new").exists()
    profile(tmp_path / "new" / "train" / "t.csv", modes="1")
    with pytest.raises(BadInput, match=r"--out: .*a folder that can be made"):
        profile(tmp_path / "new" / "train" / "t.csv" / "u.csv")


# What it survives -----------------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
from experiments.cli import main as cli
from fedge.characterisation import mode_measurement as emulated
from fedge.characterisation.profiling_journal import ProfilingJournal

point, number = sys.argv.pop(1), int(sys.argv.pop(1))
seen = 0

def end():
    os.kill(os.getpid(), {"interrupt": signal.SIGINT}.get(point, signal.SIGKILL))

def counted(name):
    global seen
    seen += name == point
    return name == point and seen == number

def append(self, event, original=ProfilingJournal._append):
    if counted("before"):
        end()
    if counted("torn"):
        os.write(self._file, b'{"event": "mode", "mo')
        os.fsync(self._file)
        end()
    original(self, event)
    if counted("after") or counted("interrupt"):
        end()

def measure(self, *given, original=emulated.EmulatedBenchBoard.measure):
    if counted("during"):
        end()
    return original(self, *given)

ProfilingJournal._append = append
emulated.EmulatedBenchBoard.measure = measure
cli.main()
"""


def run_until(out: Path, point: str, number: int) -> subprocess.CompletedProcess[str]:
    """``fedge profile`` as a process that ends itself at the ``number``-th passing of ``point``."""
    root = Path(__file__).resolve().parents[3]
    line = [sys.executable, "-c", CHILD, point, str(number), *options(out)]
    return subprocess.run(
        line, cwd=root, env=dict(os.environ), capture_output=True, text=True, timeout=120, check=False
    )


POINTS = [("before", 1), ("torn", 3), ("during", 50), ("after", 8)]
MORE = [("torn", 1), ("after", 1), ("after", 2), ("during", 3), ("before", 5), ("after", 5), ("torn", 8)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The table of a run that nothing stopped."""
    path = tmp_path_factory.mktemp("whole") / "orin-nano" / "train" / f"{WORKLOAD}.csv"
    profile(path, explorer="random")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("point", "number"), [*POINTS, *(pytest.param(*one, marks=pytest.mark.long) for one in MORE)])
def test_killed_at_any_point_and_started_again_it_leaves_the_same_table(fedge, out, whole, point, number):
    killed = run_until(out, point, number)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not out.exists()
    again = fedge(*options(out))

    assert again.code == 0, again.err
    assert out.read_bytes() == whole.read_bytes()
    assert (
        profiling_journal.profiling_record_path(out).read_bytes()
        == profiling_journal.profiling_record_path(whole).read_bytes()
    )
    assert journals.profiling_journal_path(out).read_bytes() == journals.profiling_journal_path(whole).read_bytes(), (
        "no mode was measured twice"
    )


@pytest.mark.slow
def test_interrupted_it_leaves_a_table_of_what_is_done_and_says_how_to_go_on(fedge, out):
    stopped = run_until(out, "interrupt", 5)

    assert stopped.returncode == 130
    assert "holds the 2 modes done so far; the same command goes on" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert len(read_mode_table(out).modes) == 2
    assert not json.loads(profiling_journal.profiling_record_path(out).read_text(encoding="utf-8"))["finished"]
    again = fedge(*options(out))
    assert again.err.startswith("fedge: going on after 2 of 6 modes")
    assert len(read_mode_table(out).modes) == MODES


def test_three_failures_in_a_row_end_in_one_line_and_a_table(fedge, out, monkeypatch):
    original = board_profile.build_emulated_bench

    def failing(*given, **named):
        bench = original(*given, **named)
        set_mode, maxn = bench.device.use_mode, bench.knowledge.maxn

        def in_mode(mode):
            if mode != maxn:
                raise ModeNotSet(f"{mode} did not stick")
            return set_mode(mode)

        bench.device.use_mode = in_mode
        return bench

    monkeypatch.setattr(board_profile, "build_emulated_bench", failing)
    ended = fedge(*options(out))

    assert ended.code == 1
    assert "3 modes failed in a row" in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err
    assert len(read_mode_table(out).modes) == 1
    monkeypatch.setattr(board_profile, "build_emulated_bench", original)
    assert fedge(*options(out)).code == 0
    assert len(read_mode_table(out).modes) == MODES
