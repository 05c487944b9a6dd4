"""The ``fedge`` command: its commands, and the exit codes of errors; commands import heavy libraries when called."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import click
import typer
import typer.core

from experiments.cli.chaos_command import chaos
from experiments.cli.characterise_commands import characterise, characterise_predict, characterise_report
from experiments.cli.command_options import AsJson, PanelGroup
from experiments.cli.command_output import Outputs, warn, write_error
from experiments.cli.concurrent_commands import app as concurrent
from experiments.cli.dashboard_view import board
from experiments.cli.devices_list import app as devices
from experiments.cli.finished_runs import export, query, replay, report
from experiments.cli.fleet_commands import fleet
from experiments.cli.heartbeat import show_signs_of_life
from experiments.cli.knowledge_commands import app as knowledge
from experiments.cli.network_commands import layers, memory, roofline, select_board, topology
from experiments.cli.place_commands import place, place_run
from experiments.cli.power_commands import board_check, power
from experiments.cli.predict_commands import app as predict
from experiments.cli.profile_commands import calibrate, profile
from experiments.cli.run_experiment import resume, run
from experiments.cli.run_status import runs, status
from experiments.cli.study_commands import app as study
from experiments.cli.study_commands import reproduce
from experiments.cli.sweep_commands import sweep
from experiments.cli.user_files import explain, new, schema
from fedge.errors import BadInput, FedgeError, one_line
from fedge.extras import LIBRARIES, MissingPackage, describe_missing
from fedge.garbage_collection import collect_rarely

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

EXPERIMENTS, RESULTS, NETWORKS = "Experiments", "Results", "Networks and boards"
MODES, REAL_BOARDS, HERE = "Power modes and studies", "Real boards", "This machine"


app = typer.Typer(
    name="fedge",
    cls=PanelGroup,
    help="Federated learning on fleets of NVIDIA Jetson boards, each in a power mode that fits.\n\n"
    "Start with: fedge run quickstart. What this machine can run: fedge doctor.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from fedge import __version__

        typer.echo(f"fedge {__version__}")
        raise typer.Exit


@app.callback()
def start(
    ctx: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version of fedge.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also log what the program does.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress: only results, notes and errors.")] = False,
) -> None:
    if verbose and quiet:
        raise BadInput("--quiet", "--verbose as well", "one of the two")
    level = logging.INFO if verbose else logging.ERROR if quiet else logging.WARNING
    ctx.with_resource(_set_log_level(level))
    if not quiet:
        ctx.with_resource(show_signs_of_life(" ".join(_list_command_words(ctx))))


@contextmanager
def _set_log_level(level: int) -> Iterator[None]:
    """Let the project log from ``level`` on, and as before afterwards: a command may run in a user's program."""
    loggers = [logging.getLogger(package) for package in ("fedge", "experiments", "server", "clients")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, found in zip(loggers, before, strict=True):
            logger.setLevel(found)


def _list_command_words(ctx: typer.Context) -> Iterator[str]:
    """Yield the names of the command that is called and of its group."""
    yield ctx.invoked_subcommand or ""
    inner = getattr(ctx.command, "commands", {}).get(ctx.invoked_subcommand)
    # Click has taken the words that follow out of the context by now.
    yield from [word for word in sys.argv if word in getattr(inner, "commands", ())][:1]


def _register(panel: str, commands: Iterable[Callable[..., Any] | tuple[str, typer.Typer]]) -> None:
    """Add commands, and groups with their names, under a heading of the help."""
    for one in commands:
        if isinstance(one, tuple):
            app.add_typer(one[1], name=one[0], rich_help_panel=panel)
        else:
            app.command(rich_help_panel=panel)(one)


_register(EXPERIMENTS, [run, resume, status, runs, sweep, replay, explain, schema, new])
_register(RESULTS, [report, query, board, export])
_register(NETWORKS, [select_board, layers, place, place_run])
_register(NETWORKS, [("memory", memory), ("roofline", roofline), ("topology", topology), ("concurrent", concurrent)])
_register(MODES, [("predict", predict), profile, calibrate, ("knowledge", knowledge), ("study", study)])
_register(MODES, [characterise, characterise_report, characterise_predict, reproduce])
_register(REAL_BOARDS, [("devices", devices), ("fleet", fleet), ("power", power), board_check, chaos])


@app.command(rich_help_panel=HERE)
def doctor(
    as_json: AsJson = False,
) -> None:
    """Check which packages, backends and data can be used on this machine.

    Example: fedge doctor
    """
    from experiments.backends.environment_check import EnvironmentFinding, check_environment
    from experiments.report.tables import Column, build_table, text_cell

    columns: tuple[Column[EnvironmentFinding], ...] = (
        ("what", lambda one: text_cell(one.what)),
        ("usable", lambda one: text_cell("yes" if one.usable else "no")),
        ("found", lambda one: text_cell(one.found)),
        ("what to do", lambda one: text_cell(one.remedy)),
    )
    title = f"fedge on Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    findings = check_environment()
    Outputs(as_json).deliver(findings, build_table("doctor", columns, findings, title).print)


@cache
def _build_command() -> click.Command:
    """Build the commands from their functions' signatures, once per process: it takes as long as a small command."""
    return typer.main.get_command(app)


def _find_command_name(words: Sequence[str]) -> str:
    """Return the command in a command line without its arguments, such as ``fedge fleet status``."""
    command, names = _build_command(), ["fedge"]
    for word in (word for word in words if not word.startswith("-")):
        found = getattr(command, "commands", {}).get(word)
        if found is None:
            break
        command = found
        names.append(word)
    return " ".join(names)


def main() -> None:
    """Run the console script; invalid input is reported in one line with exit code 2, a failed run with exit code 1."""
    # Before numpy and torch are imported: multi-threaded sums round differently and slow down small ones.
    for library in ("OMP", "OPENBLAS", "MKL", "VECLIB_MAXIMUM"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    # Arrow's own pool keeps what was freed, beside what the heap keeps free for everybody: with 1,400 rounds of 3
    # boards stored and shown, a process had 116 MB with it and 106 without, in the same computing time.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # Otherwise Typer escapes the brackets of plain help texts with backslashes for rich's markup.
    typer.core.HAS_RICH = False
    if sys.stderr is None:  # it was closed before the start
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        with collect_rarely():
            _build_command()(prog_name="fedge")
    except BadInput as error:
        warn(f"{error}")
        sys.exit(BAD_INPUT)
    except MissingPackage as error:
        write_error(f"{error}")
        sys.exit(BAD_INPUT)
    except FedgeError as error:
        warn(f"{error}")
        sys.exit(FAILED)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in LIBRARIES:
            raise
        write_error(describe_missing(_find_command_name(sys.argv[1:]), module))
        sys.exit(BAD_INPUT)
    except (ImportError, MemoryError) as error:
        # A library that finds no room for its own code.
        if isinstance(error, ImportError) and "failed to map segment" not in str(error):
            raise
        warn("memory has run out; free some, or use fewer boards or --jobs, then call `fedge resume RUN` or this again")
        sys.exit(FAILED)
    except OSError as error:
        if error.filename is None:
            raise
        warn(f"{one_line(error.filename)}: {error.strerror}; a path that can be read or written")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        warn("interrupted")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
