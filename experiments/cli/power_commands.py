"""Commands for use on a real board: ``fedge power``, ``fedge board-check``, ``fedge devices record``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedge.errors import BadInput

if TYPE_CHECKING:
    from fedge.devices.node_settings import NodeSettings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Settings = Annotated[
    Path | None, typer.Option(help="The board's settings; /etc/fedge/node.yaml where it exists by default.")
]
PowerSocket = Annotated[str | None, typer.Option(metavar="SOCKET", help="The power daemon's socket.")]

power = typer.Typer(
    help="The power mode of the board at hand, through its power daemon.", no_args_is_help=True, rich_markup_mode=None
)


@power.command("get")
def power_get(settings: Settings = None, socket: PowerSocket = None, as_json: AsJson = False) -> None:
    """What is set now, and who holds the board."""
    from experiments.cli import power_state as command

    answer = command.read_state(_read_settings(settings, socket).power_socket)
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        command.print_state(_make_console(), answer)


@power.command("set", context_settings={"ignore_unknown_options": True})
def power_set(
    mode: Annotated[
        str,
        typer.Argument(
            metavar="MODE",
            help="A stock mode's name (15W), or CORES/CPU/GPU/MEMORY with clocks in MHz (4/1344/510/2133); "
            "- leaves a knob as it is (-/-/510/-).",
        ),
    ],
    settings: Settings = None,
    socket: PowerSocket = None,
    as_json: AsJson = False,
) -> None:
    """Set a mode; it stays until `fedge power restore`. What the board has: fedge power modes."""
    from experiments.cli import power_state as command

    answer = command.set_mode(mode, _read_settings(settings, socket).power_socket)
    _print_answer(answer, f"set, read back {command.format_wire_mode(answer['mode'])}", as_json)


@power.command("modes")
def power_modes(settings: Settings = None, socket: PowerSocket = None, as_json: AsJson = False) -> None:
    """The board's stock modes, and the values that each knob may have."""
    from experiments.cli import power_state as command

    described = command.describe_board(_read_settings(settings, socket).power_socket)
    if as_json:
        typer.echo(json.dumps(described))
    else:
        command.print_modes(_make_console(), described)


@power.command("restore")
def power_restore(settings: Settings = None, socket: PowerSocket = None, as_json: AsJson = False) -> None:
    """Put back what the daemon found when it started."""
    from experiments.cli import power_state as command

    answer = command.restore_state(_read_settings(settings, socket).power_socket)
    _print_answer(answer, f"put back, read back {command.format_wire_mode(answer['mode'])}", as_json)


def board_check(
    seconds: Annotated[float, typer.Option(min=1.0, help="How long power is measured.")] = 30.0,
    settings: Settings = None,
    socket: PowerSocket = None,
    worker_socket: Annotated[str | None, typer.Option(metavar="SOCKET", help="The worker's socket.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set each knob of the board twice, read back, measure, put back; exits 1 when something failed."""
    from experiments.cli import board_check as command

    given = _read_settings(settings, socket)
    findings = command.check_board(
        given.place, worker_socket or given.worker_socket, seconds, lambda text: typer.echo(text, err=True)
    )
    if as_json:
        typer.echo(json.dumps(command.as_data(findings)))
    else:
        command.print_findings(_make_console(), findings)
    if not command.is_passed(findings):
        raise typer.Exit(1)


def devices_record(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The archive to write (.tar.gz).")],
    root: Annotated[Path, typer.Option(help="The board's root folder.")] = Path("/"),
    as_json: AsJson = False,
) -> None:
    """Pack the control files and sensors of this board as a root for tests; without serial numbers and names."""
    from fedge.devices.board_archive import write_board_archive
    from fedge.powerd.machine import Machine

    if out.exists() or out.is_symlink() or not out.absolute().parent.is_dir():
        raise BadInput("--out", str(out), "a new file in a folder that exists")
    if not root.is_dir():
        raise BadInput("--root", str(root), "a board's root folder")
    recording = write_board_archive(Machine(str(root)), out)
    told = f"{out}: {len(recording.taken)} files; {len(recording.unreadable)} could not be read"
    more = {"file": str(out), "taken": recording.taken, "unreadable": recording.unreadable}
    if any("/sys/kernel/debug" in line for line in recording.unreadable) or not any(
        path.startswith("/sys/kernel/debug") for path in recording.taken
    ):
        told += "; nothing below /sys/kernel/debug, which only root can read: run it with sudo for the memory clock"
    _print_answer(more, told, as_json)


def register_commands(app: typer.Typer, devices: typer.Typer) -> None:
    """Add the commands to ``fedge`` and to ``fedge devices``."""
    app.add_typer(power, name="power")
    app.command("board-check")(board_check)
    devices.command("record")(devices_record)


def _read_settings(path: Path | None, socket: str | None) -> NodeSettings:
    """Read the board's settings from the named or default file, or use the defaults of a board."""
    from fedge.devices.node_settings import load_local_settings

    settings = load_local_settings(path)
    return settings if socket is None else settings.model_copy(update={"power_socket": socket})


def _print_answer(answer: Any, told: str, as_json: bool) -> None:
    typer.echo(json.dumps(answer) if as_json else told)


def _make_console() -> Any:
    from rich.console import Console

    return Console()
