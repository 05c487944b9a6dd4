"""What the state of a host's services means, and which line of their logs tells why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from experiments.fleet.status.case import RESTARTS
from experiments.fleet.status.facts import Facts, error, lines, mapping, number
from experiments.fleet.status.records import Finding, note, wrong

SERVER_SERVICES = {"fedge-superlink": "no board gets work", "nginx": "no board gets in"}
"""The server's, and what their end means for the boards."""
SERVER_EXTRAS = {"fedge-board": "nothing that boards tell of themselves is taken, and there is no page"}
"""Those that an inventory may do without: told where they are installed."""
SYSTEMD = re.compile(r"^(\S+\.service: |Started |Stopped |Stopping |Starting |Failed to start |Main process)")
BAD = re.compile(r"(?i)error|exception|fail|refus|denied|cannot|no such|not found|killed")


def telling(log: Sequence[str]) -> str:
    """The line of a service's log that most likely says why it ended; "" when there is none."""
    own = [line for line in log if not SYSTEMD.match(line)] or list(log)
    bad = [line for line in own if BAD.search(line)]
    return (bad or own or [""])[-1]


def of_board(unit: str, has: Facts, board: str) -> Iterator[Finding]:
    """What is wrong with one of a board's services."""
    state, restarts, words = str(has.get("state")), number(has.get("restarts")) or 0, _said(has)
    provision, up = f"fedge fleet provision --limit {board}", f"fedge fleet up --limit {board}"
    look = f"on the board: journalctl -u {unit}; then {up}"
    if error(has) is not None:
        yield _unasked(unit, has)
    elif state == "absent":
        yield wrong(f"{unit} is not installed", provision)
    elif state == "inactive":
        yield wrong(f"{unit} is stopped", up)
    elif state == "failed":
        yield wrong(f"{unit} has failed{words}", look)
    elif state == "activating" and restarts > 0:
        yield wrong(f"{unit} ends and is started again, {restarts:.0f} times so far{words}", look)
    elif state == "active" and restarts >= RESTARTS:
        yield note(f"{unit} runs, after {restarts:.0f} restarts{words}", f"fedge fleet logs --limit {board}")
    elif state != "active":
        yield note(f"{unit} is {state}{words}", look)


def of_server(services: Facts, server: str) -> Iterator[Finding]:
    """What is wrong with the server's services."""
    for unit, effect in (SERVER_SERVICES | SERVER_EXTRAS).items():
        has = mapping(services.get(unit))
        state = has.get("state")
        if error(has) is not None:
            yield _unasked(unit, has)
        elif state == "absent":
            yield wrong(f"{unit} is absent, so {effect}", f"fedge fleet provision --limit {server}")
        elif state not in (None, "active"):
            yield wrong(f"{unit} is {state}, so {effect}{_said(has)}", f"fedge fleet up --limit {server}")


def _said(has: Facts) -> str:
    line = telling(lines(has.get("log")))
    return f'; it said: "{line}"' if line else ""


def _unasked(unit: str, has: Facts) -> Finding:
    return wrong(f"what {unit} does could not be asked: {has.get('text')}", f"on the host: systemctl status {unit}")
