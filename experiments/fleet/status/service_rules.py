"""Rules on the state of systemd services, with the log line that explains a failure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from experiments.fleet.status.board_case import RESTARTS
from experiments.fleet.status.host_facts import Facts, as_lines, as_mapping, as_number, error_kind
from experiments.fleet.status.status_records import HostFinding, make_note, make_problem

SERVER_SERVICES = {"fedge-superlink": "no board gets work", "nginx": "no board gets in"}
"""Services of the server, each with the consequence of its absence."""
OPTIONAL_SERVER_SERVICES = {"fedge-board": "nothing that boards tell of themselves is taken, and there is no page"}
"""Services that an inventory may omit; reported only where they are installed."""
SYSTEMD = re.compile(r"^(\S+\.service: |Started |Stopped |Stopping |Starting |Failed to start |Main process)")
BAD = re.compile(r"(?i)error|exception|fail|refus|denied|cannot|no such|not found|killed")


def find_reason_line(log: Sequence[str]) -> str:
    """Return the log line that most likely explains why a service ended, or "" for an empty log."""
    own = [line for line in log if not SYSTEMD.match(line)] or list(log)
    bad = [line for line in own if BAD.search(line)]
    return (bad or own or [""])[-1]


def check_board_service(unit: str, has: Facts, board: str, usual: int = 0) -> Iterator[HostFinding]:
    """Yield the findings on one of a board's services.

    Args:
        unit: Name of the systemd unit.
        has: The reported facts of the unit: ``state``, ``restarts``, ``log``.
        board: The board's name in the inventory, for the remedies.
        usual: Restarts that its design provides for.
    """
    state, restarts, words = str(has.get("state")), as_number(has.get("restarts")) or 0, _quote_log(has)
    provision, up = f"fedge fleet provision --limit {board}", f"fedge fleet up --limit {board}"
    look = f"on the board: journalctl -u {unit}; then {up}"
    if error_kind(has) is not None:
        yield _unreadable_service(unit, has)
    elif state == "absent":
        yield make_problem(f"{unit} is not installed", provision)
    elif state == "inactive":
        yield make_problem(f"{unit} is stopped", up)
    elif state == "failed":
        yield make_problem(f"{unit} has failed{words}", look)
    elif state == "activating" and restarts > usual:
        yield make_problem(f"{unit} ends and is started again, {restarts:.0f} times so far{words}", look)
    elif state == "active" and restarts >= RESTARTS + usual:
        yield make_note(f"{unit} runs, after {restarts:.0f} restarts{words}", f"fedge fleet logs --limit {board}")
    elif state != "active":
        yield make_note(f"{unit} is {state}{words}", look)


def check_server_services(services: Facts, server: str) -> Iterator[HostFinding]:
    """Yield the findings on the server's services, given the reported facts by systemd unit."""
    for unit, effect in (SERVER_SERVICES | OPTIONAL_SERVER_SERVICES).items():
        has = as_mapping(services.get(unit))
        state = has.get("state")
        if error_kind(has) is not None:
            yield _unreadable_service(unit, has)
        elif state == "absent":
            yield make_problem(f"{unit} is absent, so {effect}", f"fedge fleet provision --limit {server}")
        elif state not in (None, "active"):
            yield make_problem(f"{unit} is {state}, so {effect}{_quote_log(has)}", f"fedge fleet up --limit {server}")


def _quote_log(has: Facts) -> str:
    line = find_reason_line(as_lines(has.get("log")))
    return f'; it said: "{line}"' if line else ""


def _unreadable_service(unit: str, has: Facts) -> HostFinding:
    return make_problem(
        f"what {unit} does could not be asked: {has.get('text')}", f"on the host: systemctl status {unit}"
    )
