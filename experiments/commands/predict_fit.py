"""``fedge predict fit``: learns a board's time and power from a table or an emulated board, and keeps the model."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.commands.predict_use import as_data, print_facts
from fedge.costs.workloads import load_workloads
from fedge.devices import catalogue
from fedge.errors import BadInput, UnknownName
from fedge.evaluation.cells import way_of
from fedge.evaluation.knowledge import board_of
from fedge.explorers import EXPLORERS
from fedge.models import learning
from fedge.models.facts import facts_of
from fedge.models.file import load, predict, save
from fedge.models.ground import Ground, ground_of_board, ground_of_table
from fedge.models.learning import Wanted
from fedge.predictors import PREDICTORS
from fedge.profiles.health import notes_of as table_notes
from fedge.profiles.table import read_table
from fedge.registry import load as load_name
from fedge.types import ProfileTable

EMULATED_MODES = 10
"""How many modes of an emulated board are profiled unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were typed."""

    table: Path | None = None
    method: str = "fedge"
    modes: int | None = None
    explorer: str | None = None
    cost_s: float | None = None
    cost_j: float | None = None
    references: tuple[Path, ...] = ()
    prior_without: tuple[str, ...] = ()
    device: str | None = None
    workload: str | None = None
    batch_size: int | None = None
    seed: int = 0

    @property
    def bounded(self) -> bool:
        """Whether something says how much is profiled."""
        return any(given is not None for given in (self.modes, self.cost_s, self.cost_j))


def fit(asked: Asked, out: Path, as_json: bool) -> None:
    """Learn, print how well, write the model to ``out``; raises ``BadInput`` for whatever is wrong with the input."""
    _check(asked)
    _check_out(out)
    ground = _ground(asked)
    _check_modes(asked, ground)
    wanted = _wanted(asked)
    for note in (*table_notes(ground.truth), *ground.background.notes, *learning.notes_of(ground, wanted)):
        sys.stderr.write(f"fedge: {note}\n")
    model, predictor = learning.learn(ground, wanted)
    facts = facts_of(model, predictor, predict(model, predictor))
    save(out, model)
    if as_json:
        sys.stdout.write(json.dumps({**as_data(facts), "file": str(out)}) + "\n")
        return
    print_facts(facts)
    sys.stdout.write(f"written: {out}\n")


def _wanted(asked: Asked) -> Wanted:
    """On a table, an explorer picks only where something bounds it; an emulated board has no rows to take all of."""
    modes = asked.modes
    if asked.table is None and not asked.bounded:
        modes = EMULATED_MODES
    explores = asked.table is None or asked.bounded
    explorer = way_of(asked.method, asked.explorer).explorer if explores else None
    return Wanted(asked.method, asked.seed, explorer, modes, asked.cost_s, asked.cost_j)


# What is learnt from --------------------------------------------------------------------------------------------------


def _ground(asked: Asked) -> Ground:
    references = [_reference(path, asked.batch_size) for path in asked.references]
    if asked.table is not None:
        return _ground_of_table(asked, asked.table, references)
    if asked.device is None or asked.workload is None:
        right = "a TABLE, or --device NAME and --workload NAME, which profiles an emulated board"
        raise BadInput("fedge predict fit", "neither a table nor a whole board", right)
    size = load_workloads().get(asked.workload)
    if size is not None and asked.batch_size not in (None, size.batch_size):
        right = f"{size.batch_size}, the batch size at which {asked.workload} was measured"
        raise BadInput("--batch-size", str(asked.batch_size), right)
    return ground_of_board(asked.device, asked.workload, asked.seed, references, asked.prior_without)


def _ground_of_table(asked: Asked, path: Path, references: list[ProfileTable]) -> Ground:
    own = catalogue.load_spec(asked.device) if asked.device and asked.device.endswith((".yaml", ".yml")) else None
    table = read_table(path, own.name if own else asked.device, asked.workload, asked.batch_size)
    return ground_of_table(table, own or board_of(table.device), path.name, references, asked.prior_without)


def _reference(path: Path, batch_size: int | None) -> ProfileTable:
    """At the asked batch size where the table has it, else at the only one that it has."""
    try:
        return read_table(path, batch_size=batch_size)
    except BadInput:
        if batch_size is None:
            raise
        return read_table(path)


# What the options may be ----------------------------------------------------------------------------------------------


def _check(asked: Asked) -> None:
    """Raise ``BadInput`` for what can be said without reading a table."""
    if ":" in asked.method:
        right = f"one of {', '.join(sorted(PREDICTORS))}: a model's file names no code of one's own"
        raise BadInput("--method", repr(asked.method), right)
    if asked.method not in PREDICTORS:
        raise UnknownName("--method", asked.method, tuple(sorted(PREDICTORS)))
    load_name("--explorer", way_of(asked.method, asked.explorer).explorer, EXPLORERS)
    for option, value, unit in (("--cost-s", asked.cost_s, "seconds"), ("--cost-j", asked.cost_j, "joules")):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadInput(option, f"{value:g}", f"{unit}, above 0")
    if asked.seed < 0:
        raise BadInput("--seed", str(asked.seed), "a whole number, 0 or above")
    if asked.explorer is not None and asked.table is not None and not asked.bounded:
        right = "it together with --modes, --cost-s or --cost-j; without them all rows are learnt from"
        raise BadInput("--explorer", repr(asked.explorer), right)


def _check_modes(asked: Asked, ground: Ground) -> None:
    count = len(ground.truth.modes)
    if asked.modes is not None and asked.modes > count:
        raise BadInput("--modes", str(asked.modes), f"at most {count}, all that {ground.source} has")


def _check_out(out: Path) -> None:
    """A file that is there is replaced only when it is a model: it might be the measured table."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise BadInput("--out", str(out), "the path of a file in a folder that exists")
    if not out.exists():
        return
    try:
        load(out)
    except BadInput as error:
        raise BadInput("--out", f"{out}, a file that is no model", "a new file, or a model to replace") from error
