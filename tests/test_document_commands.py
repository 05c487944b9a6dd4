"""Every ``fedge`` command that a page shows works: a page's commands run in order, in a folder of their own.

Experiments are shortened (two rounds, on the backend ``local``); tables and runs that a command reads are made before.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from click import BadOptionUsage, NoSuchOption
from contracts.launching import Launcher, run_here
from typer.core import TyperGroup

from experiments.cli.command_options import DefaultCommandGroup
from experiments.cli.main import app
from experiments.spec import experiment_loader
from fedge.costs.cost_priors import find_workload_cost
from fedge.costs.layered_work import find_named_workload
from fedge.costs.table_calibration import build_planning_modes, predict_table
from fedge.devices.catalogue import find, load_catalogue
from fedge.devices.tables.mode_table import parse_table_path, parse_workload_kind, write_mode_table
from fedge.types import Modes

ROOT = Path(__file__).resolve().parents[1]
ROOT_COMMAND = typer.main.get_command(app)
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:\$ )?((?:\w+=\S+ )*(?:\.venv/bin/)?fedge [a-z].*)", re.DOTALL)
SWEEP = "experiments/configs/characterisation/emulated-quick.yaml"
NOT_RUN = {
    r"fedge (fleet|power|board-check|devices record)\b|--backend fleet|fedge run exp\.yaml": "needs boards or a fleet",
    r"fedge profile --workload|place-run .*(sysfs|dla)": "needs a Jetson: its modes, sensors or accelerators",
    r"fedge board ": "serves a page until Ctrl-C",
    r"RAY_ADDRESS=|million\.yaml": "needs a Ray cluster, or an hour",
    r"num_gpus=": "needs a GPU",
    r"concurrent run": "is refused where other programs leave too little time; see cli/test_concurrent_run.py",
    r"memory eval|--measurements rows": "reads measurements that are not part of fedge",
    r"\b(SOURCE|DIR|FILE|MODEL|ENTRY|SWEEP\.yaml)\b| \[-|\.\.\.|our-net": "has placeholders",
}
if not all(importlib.util.find_spec(name) for name in ("transformers", "peft")):
    NOT_RUN["adapters"] = "needs the extra llm"
SLOW = re.compile(
    "here-quick|modes.yaml --f|emulated-quick|characterise-predict|study |predict eval|concurrent eval|sweep |"
    "ray-dashboard|replay |roofline bench|check-training|place-run resnet50|report compared"
)
"""Commands that take longer than some ten seconds each; they run in `make test-long`."""


NUMBER = re.compile(r"[-−+~±]?\b\d[\d.,]*(?:e-?\d+)?")
HASH = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12}\b")
RULES = re.compile(r"[─━│┃┏┓┗┛┡┩├┤┬┴┼╇╈]+")


class Command(NamedTuple):
    """A command of a page.

    Attributes:
        text: The command.
        refused: Whether the page shows that it is refused, with the message.
        shown: The lines of output that the page shows behind it; ``...`` stands for others.
    """

    text: str
    refused: bool
    shown: tuple[str, ...] = ()


def list_commands(page: Path) -> Iterator[Command]:
    """Yield the commands in a page's code blocks; where a block has prompts, only the lines behind them."""
    for _, block in FENCE.findall(page.read_text(encoding="utf-8")):
        lines = block.replace("\\\n", " ").splitlines()
        prompts = any(line.startswith("$ ") for line in lines)
        for place, line in enumerate(lines, 1):
            if line.startswith("$ ") != prompts or COMMAND.fullmatch(line) is None:
                continue
            whole = line
            while whole.count('"') % 2:  # a query goes on until its quotation mark
                whole, place = f"{whole}\n{lines[place]}", place + 1  # noqa: PLW2901
            found = COMMAND.fullmatch(whole)
            shown = tuple(itertools.takewhile(lambda text: not text.startswith("$ "), lines[place:])) if prompts else ()
            refused = re.match("fedge: .*: got ", "".join(lines[place : place + 1])) is not None
            yield Command(found.group(1).replace(".venv/bin/", ""), refused, shown)


def why_not_run(command: str) -> str:
    """Return why a command is not run; empty if it is."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), "")


def read_commands(page: Path) -> list[Command]:
    return [command for command in list_commands(page) if not why_not_run(command.text)]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    copy_experiments(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_here(patch, "run", "experiments/configs/quickstart.yaml", "--folder", "run") == 0
    return folder / "run"


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Launcher:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    # An experiment named by its name is the shortened one, too.
    monkeypatch.setattr(experiment_loader, "CONFIGS", tmp_path / "experiments" / "configs")
    return Launcher(monkeypatch, capsys)


def run(command: str, fedge: Launcher, *, refused: bool = False, shown: tuple[str, ...] = ()) -> None:
    done = fedge(*shlex.split(command, comments=True)[1:])
    assert done.code == (2 if refused else 0), f"{command}\n{done.out[-1000:]}\n{done.err[-1000:]}"
    assert "Traceback" not in done.err, command
    assert find_unsaid(shown, f"{done.out}\n{done.err}") == [], f"{command}\n{done.out[-3000:]}\n{done.err[-1000:]}"


def find_unsaid(shown: tuple[str, ...], said: str) -> list[str]:
    """Return the lines that a page shows and a command does not print; numbers, what ``...`` omits, and where a line is
    wrapped may differ.
    """
    text = blur(said)

    def is_said(line: str) -> bool:
        parts = [re.escape(blur(part)) for part in line.split("...")]
        return re.search(".*?".join(parts).replace(r"\ ", r"\ ?"), text) is not None

    return [line for line in shown if blur(line) not in {"", "..."} and not is_said(line)]


def blur(text: str) -> str:
    """Return a text without what differs from run to run: numbers, checksums, spaces and ends of lines."""
    return " ".join(NUMBER.sub("#", HASH.sub("#", RULES.sub(" ", text))).split())


def test_a_shown_line_is_missed_unless_it_is_printed_with_any_numbers():
    said = "energy   41.9 kJ\n ── ──\nwritten: a.csv"

    assert find_unsaid(("energy  3.2 kJ", "...", " ────", "", "written: ..."), said) == []
    assert find_unsaid(("energy 3 J", "power 3 W"), said) == ["energy 3 J", "power 3 W"]


def copy_experiments(folder: Path) -> None:
    """Copy the shipped experiments, and those that pages show under a name, shortened; and the task files of pages."""
    shutil.copytree(ROOT / "experiments" / "configs", folder / "experiments" / "configs")
    for path in (folder / "experiments" / "configs").glob("*.yaml"):
        path.write_text(shorten(path.read_text(encoding="utf-8")), encoding="utf-8")
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
            name = re.match(r"name: ([\w-]+)\n", block)
            if language == "yaml" and name is not None:
                (folder / f"{name.group(1)}.yaml").write_text(shorten(block), encoding="utf-8")
            file = re.match(r"# (\w+\.(?:py|yaml))\n", block)
            if language in {"python", "yaml"} and file is not None:
                (folder / file.group(1)).write_text(shorten(block), encoding="utf-8")


def shorten(experiment: str) -> str:
    return re.sub(r"^(rounds|seeds): \d+", r"\1: 2", experiment, flags=re.MULTILINE)


def prepare(command: str, folder: Path, fedge: Launcher, finished_run: Path) -> None:
    """Make the tables and runs that a command reads, unless an earlier command has made them."""
    for word in shlex.split(command, comments=True):
        path = folder / word
        if path.exists() or f"--out {word}" in command or f"--folder {word}" in command:
            continue
        if re.search(r"(train|infer)/[\w-]+\.csv$", word):
            write_table(path)
        elif word == "RUN" or word.startswith("runs/"):
            shutil.copytree(finished_run, path)
        elif word == "runs":
            shutil.copytree(finished_run, path / "first")
        elif command.startswith("fedge characterise-predict") and word == "quick":
            run(f"fedge characterise {SWEEP} --folder quick", fedge)


def write_table(path: Path) -> None:
    """Write the table of a board's modes that its cost profile predicts."""
    device, workload = parse_table_path(path)
    spec, specs, kind = find(device), load_catalogue(), parse_workload_kind(path)
    modes = Modes(build_planning_modes(spec).knobs[::3])
    tables = []
    for size in (None,) if kind == "train" else (1, 4, 16):
        work, _ = find_named_workload(workload, batch_size=size, kind=kind)
        tables.append(predict_table(spec, modes, find_workload_cost(spec, work, specs)))
    write_mode_table(path, *tables)


def run_commands(commands: list[Command], folder: Path, fedge: Launcher, finished_run: Path) -> None:
    copy_experiments(folder)
    for command in commands:
        prepare(command.text, folder, fedge, finished_run)
        run(command.text, fedge, refused=command.refused, shown=command.shown)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if read_commands(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_work(page, tmp_path, fedge, finished_run):
    quick = [command for command in read_commands(page) if not SLOW.search(command.text)]
    run_commands(quick, tmp_path, fedge, finished_run)


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(SLOW.search(command.text) for command in read_commands(page))],
    ids=lambda page: page.stem,
)
def test_the_slow_commands_of_a_page_work_too(page, tmp_path, fedge, finished_run):
    run_commands(read_commands(page), tmp_path, fedge, finished_run)


def list_mentions(page: Path) -> Iterator[str]:
    """Yield every command that a page names, also in a sentence or with placeholders."""
    text = page.read_text(encoding="utf-8")
    yield from (command.text for command in list_commands(page))
    yield from re.findall(r"`(fedge (?!needs )[a-z][^`]*)`", FENCE.sub("", text))
    yield from re.findall(r"^# .*(fedge [a-z][^`\n]*)", text, re.MULTILINE)  # the heads of files that are no pages


def find_unknown(mention: str) -> str:
    """Return the error for an option or a command that fedge does not have; empty without one."""
    lexer = shlex.shlex(re.sub(r"[\[\]…,]|\.\.\.", " ", mention), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(itertools.takewhile(lambda word: not set(word) <= set("|&;<>()"), lexer))
    command, left = ROOT_COMMAND, words[words.index("fedge") + 1 :]
    while True:
        try:
            _, left, _ = command.make_parser(typer.Context(command)).parse_args(list(left))
        except NoSuchOption as error:
            return error.format_message()
        except BadOptionUsage:  # an option that is named without its value
            return ""
        if not left or not isinstance(command, TyperGroup):
            return ""
        if left[0] not in command.commands and isinstance(command, DefaultCommandGroup):
            left = [next(iter(command.commands)), *left]
        if left[0] not in command.commands:
            return f"No such command: {left[0]}"
        command, left = command.commands[left[0]], left[1:]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "Dockerfile"], ids=lambda page: page.stem)
def test_the_commands_and_options_that_a_page_names_exist(page):
    found = {mention: find_unknown(mention) for mention in list_mentions(page)}

    assert {mention: error for mention, error in found.items() if error} == {}


def test_what_is_not_run_is_some_page_s_command():
    every = [command.text for page in PAGES for command in list_commands(page)]

    assert len(every) > 100
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, command) for command in every)] == []


@pytest.mark.slow
def test_the_quickstart_ends_as_the_readme_shows(fedge, tmp_path):
    """Every line with any numbers; the numbers within a quarter: they move with every change of a model."""
    shown = next(block for _, block in FENCE.findall(PAGES[0].read_text("utf-8")) if block.startswith("quickstart: "))
    done = fedge("run", str(ROOT / "experiments/configs/quickstart.yaml"), "--folder", "run")

    assert find_unsaid(tuple(shown.splitlines()[:-1]), done.out) == []
    for name, share in (("accuracy", 0.02), ("energy", 0.05), ("saving vs MAXN", 0.25), ("mean round", 0.05)):
        figures = [re.search(rf"^{name} +([\d.]+)", text, re.MULTILINE) for text in (shown, done.out)]
        assert all(figures), name
        page, real = (float(one.group(1)) for one in figures if one is not None)
        assert real == pytest.approx(page, rel=share), name
