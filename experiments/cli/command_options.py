"""Declarations that several commands share: groups, options, and records of a command's options."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import click
import typer
import typer.core
import typer.main

from fedge.errors import MAX_SIMILAR, find_similar

R = TypeVar("R")

Experiment = Annotated[
    Path,
    typer.Argument(metavar="EXPERIMENT", help="YAML file of the experiment, or a name that fedge knows: quickstart."),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
Network = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK",
        help="A classifier of torchvision (resnet50), a workload (resnet18-imagenet), module:function of your own, or "
        "a file: .onnx, or .json of `fedge layers --out`.",
    ),
]


def _strip_emulated(board: str) -> str:
    """Return the board of a table that `fedge profile` measured under the name of an emulated one."""
    from fedge.characterisation.sweep_plan import EMULATED

    return board.removeprefix(EMULATED)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to standard output.")]
Yes = Annotated[bool, typer.Option("--yes", help="Ask for no confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check, show what would be done, and start nothing.")]
OutFile = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="File to write: the result as JSON.")]
ChartPage = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Value of a key of the experiment; may be repeated."),
]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="WORD", help="A word to find runs by; may be repeated.")
]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input-shape", metavar="SHAPE", help="One sample's shape, as 3x224x224; by default the network's own."
    ),
]
Board = Annotated[
    str, typer.Option("--board", help="The board; a name of `fedge devices list`, or a .yaml file of your own.")
]
TableBoard = Annotated[
    str | None,
    typer.Option(
        "--board",
        help="The board; by default from the table's path.",
        callback=lambda name: name and _strip_emulated(name),
    ),
]
TableWorkload = Annotated[str | None, typer.Option("--workload", help="The workload; by default from the file's name.")]
TableBatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="Samples per step; needed if a table holds several sizes.")
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="Samples per step; by default the workload's own.")
]
StepKind = Annotated[Literal["train", "infer"], typer.Option("--kind", help="Kind of step.")]
MaxPower = Annotated[float | None, typer.Option("--max-power-w", help="Limit of the board's power, in watts.")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Processes side by side; by default as many as there are cores for.")
]
ProfiledModes = Annotated[str, typer.Option(metavar="N|all", help="Number of modes to profile.")]
ModeExplorer = Annotated[str, typer.Option(help="Explorer that picks the modes.")]
MaxModeTime = Annotated[
    float | None,
    typer.Option("--max-mode-s", min=1.0, help="Seconds after which a mode is abandoned, settled or not."),
]
ProfilingBudget = Annotated[
    float | None, typer.Option(min=1.0, help="Limit of the profiling time, in seconds; the same command goes on.")
]
Settings = Annotated[
    Path | None,
    typer.Option(
        "--settings", metavar="FILE", help="The board's settings; by default /etc/fedge/node.yaml if it exists."
    ),
]
WorkerSocket = Annotated[str | None, typer.Option("--worker-socket", metavar="SOCKET", help="The worker's socket.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Number of repetitions.")]
SEED_HELP = "Seed of all random choices, an emulated board's deviation included."
Seed = Annotated[int, typer.Option("--seed", min=0, help=SEED_HELP)]


OUTPUTS = {"out", "html", "as_json"}
"""Parameters that say where a command's result goes."""


def build_options(record: type[R], parameters: Mapping[str, Any], *, others: Collection[str] = (), **more: Any) -> R:
    """Return a record of options with a command's parameters of the same names.

    Args:
        parameters: The command's parameters, a copy of ``locals()`` at its beginning; lists become tuples, and a
            parameter that was not given leaves the record's default.
        others: The parameters that are no options of the record, beside those of ``OUTPUTS``.
        more: Fields that are no parameters; for a dataclass, a record of it made of the same parameters.

    Raises:
        TypeError: If a parameter is neither a field nor among ``others``, or both.
    """
    parts = [one for one in more.values() if isinstance(one, type)]
    fields = {field.name for one in (record, *parts) for field in dataclasses.fields(one)}
    if odd := (parameters.keys() - fields - OUTPUTS) ^ set(others):
        raise TypeError(f"{record.__name__}: {', '.join(sorted(odd))} must be a field or among the others")
    made = {name: _fill(one, parameters) if isinstance(one, type) else one for name, one in more.items()}
    return _fill(record, {**parameters, **made})


def _fill(record: type[R], parameters: Mapping[str, Any]) -> R:
    values = {}
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = parameters.get(field.name)
        if value is not None or field.default is field.default_factory is dataclasses.MISSING:
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return record(**values)


FULL_SENTENCE = 1000
"""Characters of a command's summary in its group's help: all of its first sentence."""


class DescribedArgument(typer.core.TyperArgument):
    """Argument whose help is shown once: Click from 8.4 on empties it, and would list arguments with one a second time.

    Typer before 0.21, which Flower needs, does not know of this.
    """

    def __init__(self, *, help: str | None = None, **rest: Any) -> None:  # noqa: A002  Typer's own name
        super().__init__(help=help, **rest)
        self._text = help

    def get_help_record(self, ctx: Any) -> Any:
        """Return the argument and its help as they stand in the help of its command."""
        kept, self.help = self.help, self._text
        try:
            return super().get_help_record(ctx)
        finally:
            self.help = kept


typer.main.TyperArgument = DescribedArgument  # type: ignore[attr-defined]


class PanelGroup(typer.core.TyperGroup):
    """Command group that lists its commands under headings, their help panels, in plain text."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; names like an unknown one are suggested once, whether Click does so itself or not."""
        self.suggest_commands = False  # Typer would repeat Click's suggestion
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            similar = find_similar(args[0], self.commands) or self._find_described(args[0])
            if not similar or getattr(error, "possibilities", None):
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(similar)}?", ctx) from error

    def _find_described(self, word: str) -> list[str]:
        """Return the first commands whose summary has a word, such as ``report`` for ``compare``."""
        described = {name: command.get_short_help_str(FULL_SENTENCE) for name, command in self.commands.items()}
        found = [name for name, text in described.items() if word.lower() in re.findall(r"\w{3,}", text.lower())]
        return found[:MAX_SIMILAR]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section per panel, in the order in which the panels were first used."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None)
            summary = command.get_short_help_str(FULL_SENTENCE)
            panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append((name, summary))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


class DefaultCommandGroup(PanelGroup):
    """Command group whose first command is meant when the first word names none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``roofline resnet50 ...`` as ``roofline NETWORK resnet50 ...``."""
        if args and args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def command_group(summary: str, cls: type[PanelGroup] = PanelGroup) -> typer.Typer:
    """Return a group of commands, which shows its help if no command is named."""
    return typer.Typer(cls=cls, help=summary, no_args_is_help=True, rich_markup_mode=None)
