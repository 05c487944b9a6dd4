"""Reasons why a SuperLink refuses a SuperNode: the log lines of Flower 1.41 and what each of them means."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from experiments.fleet.status.board_case import AHEAD_S, SUPERNODE, TAKEOVER_RESTARTS, BoardCase
from experiments.fleet.status.host_facts import as_lines, as_number, error_kind, format_duration
from experiments.fleet.status.status_records import HostFinding, make_note, make_problem

START_LINE = "Starting Flower SuperNode"
START_LINES = 8
"""Lines that a SuperNode logs before it first contacts the SuperLink."""
NOT_ACTIVATED = r"code: 2004\b|failed to activate supernode"
TRYING_STATES = ("active", "activating", "failed")
"""Unit states in which a SuperNode's last log lines count; a stopped one was not refused."""

RefusalMeaning = Callable[[BoardCase], HostFinding | None]
"""Finding that a log line stands for on a board; None if nothing is wrong."""


def find_refusal(case: BoardCase) -> HostFinding | None:
    """Explain from the SuperNode's last attempt why it is not online, or return None if its log shows no reason."""
    service = case.service(SUPERNODE)
    if service.get("state") not in TRYING_STATES:
        return None
    log = "\n".join(list_last_start_lines(as_lines(service.get("log"))))
    if case.is_online:  # or counted as online still, after a power cut
        refused = service.get("state") != "active" and re.search(NOT_ACTIVATED, log, re.IGNORECASE)
        return _explain_not_activated(case) if refused else None
    for words, meaning in REFUSALS:
        if re.search(words, log, re.IGNORECASE):
            return meaning(case)
    return _explain_unreachable(case) if error_kind(case.part("way")) else None


def list_last_start_lines(log: Sequence[str]) -> list[str]:
    """Return the log lines since the SuperNode's last start, or all of them if no start is logged."""
    starts = [number for number, line in enumerate(log) if START_LINE in line]
    # An attempt that has only just begun has logged nothing useful yet, so the one before it counts as well.
    settled = [number for number in starts if len(log) - number > START_LINES]
    return list(log[settled[-1] :]) if settled else list(log)


def _explain_wrong_name(case: BoardCase) -> HostFinding:
    host = case.superlink_host
    renew = f"fedge fleet keys --folder KEYS --renew --host {host} (and every other name)"
    cure = f"{renew}, then fedge fleet provision --limit server"
    return make_problem(f"it dials {host}, which is not in the server's certificate", cure)


def _explain_expired(case: BoardCase) -> HostFinding:
    what = f"the certificate at {case.superlink} does not hold today by the board's clock"
    return make_problem(what, "fedge fleet keys --folder KEYS --check, and look at the board's clock")


def _explain_wrong_ca(case: BoardCase) -> HostFinding:
    what = f"it does not trust the certificate at {case.superlink}: another CA signed it than the ca.crt on the board"
    cure = "supernode_ca_certificate in the inventory: the CA of server.crt"
    return make_problem(what, f"{cure}; then {case.cure_command('provision')}")


def _explain_plain_text(case: BoardCase) -> HostFinding:
    return make_problem(
        f"it speaks plain text to {case.superlink}, which takes TLS alone", case.cure_command("provision")
    )


def _explain_no_tls(case: BoardCase) -> HostFinding:
    what = f"what listens at {case.superlink} does not speak TLS; it is not the proxy before the SuperLink"
    return make_problem(what, _port_cure(case))


def _explain_forbidden(case: BoardCase) -> HostFinding:
    return make_problem(f"what listens at {case.superlink} refuses what a SuperNode asks for (403)", _port_cure(case))


def _port_cure(case: BoardCase) -> str:
    return f"supernode_superlink in the inventory: the boards' port; then {case.cure_command('provision')}"


def _explain_no_key(case: BoardCase) -> HostFinding:
    return make_problem("its SuperNode runs without its key, and is refused", case.cure_command("provision"))


def _explain_not_activated(case: BoardCase) -> HostFinding:
    if case.node is None:
        what = "its key is not registered at the SuperLink, which refuses it (Flower's exit code 305)"
        return make_problem(what, case.cure_command("provision", "server"))
    if (as_number(case.service(SUPERNODE).get("restarts")) or 0) <= TAKEOVER_RESTARTS:
        what = "the SuperLink still counts it as online, for up to a minute after it was cut off"
        return make_note(what, "nothing: its SuperNode tries again every 15 s")
    what = "its key is registered and yet refused: another SuperNode is online with it, or was until a minute ago"
    return make_problem(what, "wait a minute; if it stays so, look which other board has a copy of its key")


def _explain_bad_signature(case: BoardCase) -> HostFinding | None:
    """A rejected signature ends the SuperNode silently with exit code 0, like an ordinary stop."""
    if not as_number(case.service(SUPERNODE).get("restarts")):
        return None
    clock = case.clock
    off = (
        f"; its clock is off by {format_duration(abs(clock.middle_s))}"
        if clock and abs(clock.middle_s) > AHEAD_S
        else ""
    )
    what = f"the SuperLink refuses its signature, as it does with a clock more than 5 s ahead or 5 min behind{off}"
    return make_problem(what, "on the board: date; sudo chronyc makestep; the server's clock may be the wrong one")


def _explain_unreachable(case: BoardCase) -> HostFinding:
    """The SuperNode cannot connect; only the status probe's own attempt shows why."""
    attempt, host = case.part("way"), case.superlink_host
    kind = error_kind(attempt)
    if kind == "unresolved":
        cure = f"an address in supernode_superlink, or a line for {host} in the board's /etc/hosts"
        return make_problem(f"it does not know the name {host}", cure)
    if kind == "refused":
        cure = "fedge fleet up --limit server; is supernode_superlink the port of the proxy?"
        return make_problem(f"nobody listens at {case.superlink}: the proxy before the SuperLink is down", cure)
    if attempt.get("ok") is True:
        what = f"its SuperNode could not connect to {case.superlink} a while ago; it can be reached now"
        return make_note(what, "wait a minute, then ask again")
    what = f"it does not reach {case.superlink}" + (f" ({attempt.get('text')})" if kind else "")
    from_board = f"from the board: nc -vz {case.superlink.replace(':', ' ')}"
    return make_problem(what, f"the network between them, the server's firewall; {from_board}")


REFUSALS: Sequence[tuple[str, RefusalMeaning]] = (
    (r"certificate is not valid for|hostname mismatch|ip address mismatch", _explain_wrong_name),
    (r"certificate has expired|certificate is not yet valid", _explain_expired),
    (r"certificate verify failed|certificate_verify_failed", _explain_wrong_ca),
    (r"wrong.version.number", _explain_no_tls),
    (r"400 bad request|option `--insecure` was set", _explain_plain_text),
    (r"code: 2001\b|authentication is enabled", _explain_no_key),
    (NOT_ACTIVATED, _explain_not_activated),
    (r"403 forbidden", _explain_forbidden),
    (r"terminated gracefully|401 unauthorized", _explain_bad_signature),
    (r"connection attempt failed", _explain_unreachable),
)
"""Log patterns of Flower 1.41's SuperNode with their explanations; the first match is the cause."""
