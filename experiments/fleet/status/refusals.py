"""Why a SuperNode does not get in: the words that Flower 1.41 logs, and what each of them means, as one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from experiments.fleet.status.case import AHEAD_S, SUPERNODE, Case
from experiments.fleet.status.clocks import duration
from experiments.fleet.status.facts import error, lines, number
from experiments.fleet.status.records import Finding, note, wrong

START = "Starting Flower SuperNode"
START_LINES = 8
"""What a SuperNode says before its first word with the SuperLink."""
AT_WORK = ("active", "activating", "failed")
"""The states in which a SuperNode's last words count; one that was stopped was not refused."""

Meaning = Callable[[Case], Finding | None]
"""What a log's words mean of one board; None: nothing is wrong after all."""


def refusal(case: Case) -> Finding | None:
    """Why the SuperLink does not know the board as online, from the SuperNode's last try; None when nothing says so."""
    service = case.service(SUPERNODE)
    if case.online or service.get("state") not in AT_WORK:
        return None
    log = "\n".join(last_try(lines(service.get("log"))))
    for words, meaning in REFUSALS:
        if re.search(words, log, re.IGNORECASE):
            return meaning(case)
    return _no_way(case) if error(case.part("way")) else None


def last_try(log: Sequence[str]) -> list[str]:
    """The lines since the SuperNode's last start, if they say when that was."""
    starts = [number for number, line in enumerate(log) if START in line]
    # A try that has only just begun says nothing yet: then those before it, too.
    told = [number for number in starts if len(log) - number > START_LINES]
    return list(log[told[-1] :]) if told else list(log)


def _wrong_name(case: Case) -> Finding:
    host = case.superlink_host
    renew = f"fedge fleet keys --out KEYS --renew --host {host} (and every other name)"
    cure = f"{renew}, then fedge fleet provision --limit server"
    return wrong(f"it dials {host}, which is not in the server's certificate", cure)


def _expired(case: Case) -> Finding:
    what = f"the certificate at {case.superlink} does not hold today by the board's clock"
    return wrong(what, "fedge fleet keys --out KEYS --check, and look at the board's clock")


def _wrong_ca(case: Case) -> Finding:
    what = f"it does not trust the certificate at {case.superlink}: another CA signed it than the ca.crt on the board"
    cure = "supernode_ca_certificate in the inventory: the CA of server.crt"
    return wrong(what, f"{cure}; then {case.cure('provision')}")


def _plain(case: Case) -> Finding:
    return wrong(f"it speaks plain text to {case.superlink}, which takes TLS alone", case.cure("provision"))


def _no_tls(case: Case) -> Finding:
    what = f"what listens at {case.superlink} does not speak TLS; it is not the proxy before the SuperLink"
    return wrong(what, _another_port(case))


def _forbidden(case: Case) -> Finding:
    return wrong(f"what listens at {case.superlink} refuses what a SuperNode asks for (403)", _another_port(case))


def _another_port(case: Case) -> str:
    return f"supernode_superlink in the inventory: the boards' port; then {case.cure('provision')}"


def _no_key(case: Case) -> Finding:
    return wrong("its SuperNode runs without its key, and is refused", case.cure("provision"))


def _not_activated(case: Case) -> Finding:
    if case.node is None:
        what = "its key is not registered at the SuperLink, which refuses it (Flower's exit code 305)"
        return wrong(what, case.cure("provision", "server"))
    what = "its key is registered and yet refused: another SuperNode is online with it, or was until a minute ago"
    return wrong(what, "wait a minute; if it stays so, look which other board has a copy of its key")


def _turned_away(case: Case) -> Finding | None:
    """It ends without a word and with exit code 0, as it does when it is told to stop."""
    if not number(case.service(SUPERNODE).get("restarts")):
        return None
    clock = case.clock
    off = f"; its clock is off by {duration(abs(clock.middle_s))}" if clock and abs(clock.middle_s) > AHEAD_S else ""
    what = f"the SuperLink refuses its signature, as it does with a clock more than 5 s ahead or 5 min behind{off}"
    return wrong(what, "on the board: date; sudo chronyc makestep; the server's clock may be the wrong one")


def _no_way(case: Case) -> Finding:
    """It cannot connect; why, only the probe's own try says."""
    way, host = case.part("way"), case.superlink_host
    kind = error(way)
    if kind == "unresolved":
        cure = f"an address in supernode_superlink, or a line for {host} in the board's /etc/hosts"
        return wrong(f"it does not know the name {host}", cure)
    if kind == "refused":
        cure = "fedge fleet up --limit server; is supernode_superlink the port of the proxy?"
        return wrong(f"nobody listens at {case.superlink}: the proxy before the SuperLink is down", cure)
    if way.get("ok") is True:
        what = f"its SuperNode could not connect to {case.superlink} a while ago; it can be reached now"
        return note(what, "wait a minute, then ask again")
    what = f"it does not reach {case.superlink}" + (f" ({way.get('text')})" if kind else "")
    from_board = f"from the board: nc -vz {case.superlink.replace(':', ' ')}"
    return wrong(what, f"the network between them, the server's firewall; {from_board}")


REFUSALS: Sequence[tuple[str, Meaning]] = (
    (r"certificate is not valid for|hostname mismatch|ip address mismatch", _wrong_name),
    (r"certificate has expired|certificate is not yet valid", _expired),
    (r"certificate verify failed|certificate_verify_failed", _wrong_ca),
    (r"wrong.version.number", _no_tls),
    (r"400 bad request|option `--insecure` was set", _plain),
    (r"code: 2001\b|authentication is enabled", _no_key),
    (r"code: 2004\b|failed to activate supernode", _not_activated),
    (r"403 forbidden", _forbidden),
    (r"terminated gracefully|401 unauthorized", _turned_away),
    (r"connection attempt failed", _no_way),
)
"""What Flower 1.41's SuperNode logs when it does not get in; the first that fits is the cause."""
