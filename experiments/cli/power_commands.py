"""Commands for use on a real board: ``fedge power``, ``fedge board-check``, ``fedge devices record``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.command_options import AsJson, Settings, WorkerSocket, command_group
from experiments.cli.command_output import Outputs
from experiments.cli.devices_list import app as devices
from experiments.report.tables import make_prose_table, print_lines
from fedge.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from fedge.devices.board_check import BoardCheckFinding
    from fedge.devices.local_board import NodeSettings

PowerSocket = Annotated[str | None, typer.Option("--power-socket", metavar="SOCKET", help="The power daemon's socket.")]

power = command_group("The power mode of the local board, through its power daemon.")


@power.command("get")
def power_get(settings: Settings = None, socket: PowerSocket = None, as_json: AsJson = False) -> None:
    """Show the present mode and the holder of the board's lease.

    Example: fedge power get
    """
    from fedge.devices.board_power import ask_powerd

    state = ask_powerd(_read_settings(settings, socket).power_socket, "get")
    Outputs(as_json).deliver(state, lambda console: print_state(console, state))


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
    """Set a mode; it stays until `fedge power restore`.

    `fedge power modes` lists what the board has.

    Example: fedge power set 15W
    """
    from fedge.devices.board_power import format_wire_mode, set_power_mode

    answer = set_power_mode(mode, _read_settings(settings, socket).power_socket)
    _print_answer(answer, f"set, read back {format_wire_mode(answer['mode'])}", as_json)


@power.command("modes")
def power_modes(settings: Settings = None, socket: PowerSocket = None, as_json: AsJson = False) -> None:
    """List the board's stock modes and the values of each knob.

    Example: fedge power modes
    """
    from fedge.devices.board_power import ask_powerd

    described = ask_powerd(_read_settings(settings, socket).power_socket, "describe")
    Outputs(as_json).deliver(described, lambda console: print_modes(console, described))


@power.command("restore")
def power_restore(settings: Settings = None, socket: PowerSocket = None, as_json: AsJson = False) -> None:
    """Restore the mode that the daemon found when it started.

    Example: fedge power restore
    """
    from fedge.devices.board_power import ask_powerd, format_wire_mode

    answer = ask_powerd(_read_settings(settings, socket).power_socket, "restore")
    _print_answer(answer, f"restored, read back {format_wire_mode(answer['mode'])}", as_json)


def print_modes(console: Console, described: Mapping[str, Any]) -> None:
    """Print knobs and presets."""
    from experiments.report.tables import print_facts
    from fedge.devices.board_power import WIRE_KNOBS, format_wire_mode

    allowed = described["allowed"]
    lines = [
        (name, ", ".join(f"{value / unit:g}" for value in allowed[knob]) or "not on this board")
        for knob, name, unit in WIRE_KNOBS
    ]
    for preset in described["presets"]:
        marks = [
            word for word, true in (("default", preset["default"]), ("needs a reboot", preset["needs_reboot"])) if true
        ]
        note = f"  ({', '.join(marks)})" if marks else ""
        lines.append((preset["name"], f"{format_wire_mode(preset['mode'])}{note}"))
    print_facts(console, lines)


def print_state(console: Console, answer: Mapping[str, Any]) -> None:
    """Print the power daemon's state."""
    from experiments.report.tables import print_facts
    from fedge.devices.board_power import WIRE_KNOBS

    mode, preset, lease = answer["mode"], answer.get("preset"), answer.get("lease")
    unknown = "not on this board" if mode else "cannot be read"
    lines = [
        *((name, unknown if mode.get(knob) is None else f"{mode[knob] / unit:g}") for knob, name, unit in WIRE_KNOBS),
        ("stock mode", preset["name"] if preset else "unknown"),
        ("held by", f"{lease['name']}, {lease['left_s']:.0f} s left" if lease else "nobody"),
        ("changed", "yes: 'fedge power restore' restores the original state" if answer.get("changed") else "no"),
    ]
    if answer.get("temperature_c") is not None:
        lines.append(("hottest", f"{answer['temperature_c']:.1f} C"))
    if answer.get("stopped"):
        lines.append(("refuses changes", str(answer["stopped"])))
    print_facts(console, lines)


def board_check(
    seconds: Annotated[float, typer.Option(min=1.0, help="Duration in seconds (power measurement).")] = 30.0,
    settings: Settings = None,
    socket: PowerSocket = None,
    worker_socket: WorkerSocket = None,
    as_json: AsJson = False,
) -> None:
    """Set each knob twice, read it back, measure power and the link, and restore.

    Exit code 1 if a check failed.

    Example: fedge board-check --seconds 10
    """
    from fedge.devices.board_check import check_board, is_passed
    from fedge.telemetry.uplink import check_link

    given = _read_settings(settings, socket)
    report = partial(typer.echo, err=True)
    findings = check_board(given.place, worker_socket or given.worker_socket, seconds, report)
    report("measuring the link ...")
    findings = (*findings, check_link(given.telemetry))
    Outputs(as_json).deliver(findings, lambda console: print_findings(console, findings))
    if not is_passed(findings):
        raise typer.Exit(1)


def print_findings(console: Console, findings: Sequence[BoardCheckFinding]) -> None:
    """Print the findings of a board check as a table."""
    from rich.text import Text

    from fedge.devices.board_check import FAILED, PASSED, SKIPPED

    table = make_prose_table("Check", "Result", "Seen")
    styles = {PASSED: "green", FAILED: "bold red", SKIPPED: "dim"}
    for finding in findings:
        table.add_row(Text(finding.what), Text(finding.result, styles[finding.result]), Text(finding.seen))
    console.print(table)


@devices.command("record")
def devices_record(
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write: the archive (.tar.gz).")],
    root: Annotated[Path, typer.Option(metavar="DIR", help="The board's root folder.")] = Path("/"),
    as_json: AsJson = False,
) -> None:
    """Pack the control files and sensors of this board as a root for tests.

    Serial numbers and names are left out.

    Example: fedge devices record --out nano.tar.gz
    """
    from fedge.devices.board_archive import write_board_archive
    from fedge.powerd.machine import Machine

    if out.exists() or out.is_symlink() or not out.absolute().parent.is_dir():
        raise BadInput("--out", str(out), "a new file in a folder that exists")
    if not root.is_dir():
        raise BadInput("--root", str(root), "a board's root folder")
    recording = write_board_archive(Machine(str(root)), out)
    text = f"{out}: {len(recording.taken)} files; {len(recording.unreadable)} could not be read"
    more = {"file": str(out), "taken": recording.taken, "unreadable": recording.unreadable}
    if any("/sys/kernel/debug" in line for line in recording.unreadable) or not any(
        path.startswith("/sys/kernel/debug") for path in recording.taken
    ):
        text += "; nothing below /sys/kernel/debug, which only root can read: run it with sudo for the memory clock"
    _print_answer(more, text, as_json)


def _read_settings(path: Path | None, socket: str | None) -> NodeSettings:
    """Read the board's settings from the named or default file, or use the defaults of a board."""
    from fedge.devices.local_board import load_local_settings

    settings = load_local_settings(path)
    return settings if socket is None else settings.model_copy(update={"power_socket": socket})


def _print_answer(answer: Any, text: str, as_json: bool) -> None:
    Outputs(as_json).deliver(answer, lambda console: print_lines(console, [text]))
