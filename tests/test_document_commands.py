"""Every ``fedge`` command that a page shows works: a page's commands run in order, in a folder of their own.

Experiments are shortened (two rounds, on the backend ``local``); tables and runs that a command reads are made before.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from fedge.costs.cost_priors import find_workload_cost
from fedge.costs.named_workload import find_named_workload
from fedge.costs.predicted_tables import build_planning_modes, predict_table
from fedge.devices.catalogue import find, load_catalogue
from fedge.devices.tables.mode_table import parse_table_path, parse_workload_kind, write_mode_table
from fedge.types import Modes

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:\$ )?((?:\w+=\S+ )*(?:\.venv/bin/)?fedge [a-z].*)", re.DOTALL)
LIMIT_S = 900
SWEEP = "experiments/configs/characterisation/emulated-quick.yaml"
NOT_RUN = {
    r"fedge (fleet|power|board-check|devices record)\b|--backend fleet|fedge run exp\.yaml": "needs boards or a fleet",
    r"fedge profile --workload|place-run .*(sysfs|dla)": "needs a Jetson: its modes, sensors or accelerators",
    r"fedge board ": "serves a page until Ctrl-C",
    r"RAY_ADDRESS=|million\.yaml": "needs a Ray cluster, or an hour",
    r"memory eval|--measurements rows": "reads measurements that are not part of fedge",
    r"\b(SOURCE|DIR|FILE|MODEL|SWEEP\.yaml)\b|RUN \[|\.\.\.": "has placeholders",
}
SLOW = re.compile(
    "here-quick|modes.yaml --out|emulated-quick|characterise-predict|study |predict eval|concurrent (eval|run)|sweep |"
    "ray-dashboard|roofline bench|check-training|place-run resnet50"
)
"""Commands that take longer than some ten seconds each; they run in `make test-long`."""


def list_commands(page: Path) -> Iterator[str]:
    """Yield the commands in a page's code blocks; where a block has prompts, only the lines behind them."""
    for _, block in FENCE.findall(page.read_text(encoding="utf-8")):
        prompts = any(line.startswith("$ ") for line in block.splitlines())
        lines = iter(block.replace("\\\n", " ").splitlines())
        for line in lines:
            if line.startswith("$ ") != prompts or COMMAND.fullmatch(line) is None:
                continue
            while line.count('"') % 2:  # a query goes on until its quotation mark
                line = f"{line}\n{next(lines)}"  # noqa: PLW2901
            found = COMMAND.fullmatch(line)
            assert found is not None
            yield found.group(1).replace(".venv/bin/", "")


def why_not_run(command: str) -> str:
    """Return why a command is not run; empty if it is."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), "")


def read_commands(page: Path) -> list[str]:
    return [command for command in list_commands(page) if not why_not_run(command)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    cache = tmp_path_factory.mktemp("cache")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "FEDGE_CACHE": str(cache), "COLUMNS": "120"}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    copy_experiments(folder)
    run("fedge run experiments/configs/quickstart.yaml --out run", folder, environment)
    return folder / "run"


def run(command: str, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-1000:]}\n{done.stderr[-1000:]}"
    assert "Traceback" not in done.stderr, command


def copy_experiments(folder: Path) -> None:
    """Copy the shipped experiments, and those that pages show under a name, shortened."""
    shutil.copytree(ROOT / "experiments" / "configs", folder / "experiments" / "configs")
    for path in (folder / "experiments" / "configs").glob("*.yaml"):
        path.write_text(shorten(path.read_text(encoding="utf-8")), encoding="utf-8")
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
            name = re.match(r"name: ([\w-]+)\n", block)
            if language == "yaml" and name is not None:
                (folder / f"{name.group(1)}.yaml").write_text(shorten(block), encoding="utf-8")


def shorten(experiment: str) -> str:
    return re.sub(
        r"^backend: sim\b",
        "backend: local",
        re.sub(r"^rounds: \d+", "rounds: 2", experiment, flags=re.MULTILINE),
        flags=re.MULTILINE,
    )


def prepare(command: str, folder: Path, environment: dict[str, str], finished_run: Path) -> None:
    """Make the tables and runs that a command reads, unless an earlier command has made them."""
    words = [word for word in shlex.split(command.partition(" #")[0]) if not word.startswith("-")]
    outputs = {after for before, after in pairwise(words) if before in ("--out", "--to")}
    for word in words:
        path = folder / word
        if path.exists() or word in outputs or f"--out {word}" in command:
            continue
        if re.search(r"(train|infer)/[\w-]+\.csv$", word):
            write_table(path)
        elif word == "RUN" or word.startswith("runs/"):
            shutil.copytree(finished_run, path)
        elif command.startswith("fedge characterise-predict") and word == "quick":
            run(f"fedge characterise {SWEEP} --out quick", folder, environment)


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


def run_page(page: Path, commands: list[str], folder: Path, environment: dict[str, str], finished_run: Path) -> None:
    copy_experiments(folder)
    for command in commands:
        prepare(command, folder, environment, finished_run)
        run(command, folder, environment)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if read_commands(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_work(
    page: Path, tmp_path: Path, environment: dict[str, str], finished_run: Path
) -> None:
    quick = [command for command in read_commands(page) if not SLOW.search(command)]
    run_page(page, quick, tmp_path, environment, finished_run)


@pytest.mark.long
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(SLOW.search, read_commands(page)))], ids=lambda page: page.stem
)
def test_the_slow_commands_of_a_page_work_too(
    page: Path, tmp_path: Path, environment: dict[str, str], finished_run: Path
) -> None:
    run_page(page, read_commands(page), tmp_path, environment, finished_run)


def test_what_is_not_run_is_some_page_s_command() -> None:
    every = [command for page in PAGES for command in list_commands(page)]

    assert len(every) > 100
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, command) for command in every)] == []
