"""Health rules for a board and its services, one small function each, collected in ``BOARD_RULES``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from experiments.fleet.status_records import (
    AHEAD_S,
    BEHIND_S,
    CERTIFICATE_DAYS,
    HOT_C,
    LEAST_FREE_MB,
    ON_BOARD,
    ON_SERVER,
    OPTIONAL_SERVICES,
    RESTARTS,
    SERVICES,
    SILENT_S,
    SUPERNODE,
    TAKEOVER_RESTARTS,
    TELEMETRY,
    BoardCase,
    Facts,
    HostFinding,
    as_lines,
    as_mapping,
    as_number,
    as_text,
    error_kind,
    format_duration,
    make_note,
    make_problem,
    unregister_command,
)

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
            return meaning(case) if callable(meaning) else _fill_explanation(case, *meaning)
    return _explain_unreachable(case) if error_kind(case.part("way")) else None


def list_last_start_lines(log: Sequence[str]) -> list[str]:
    """Return the log lines since the SuperNode's last start, or all of them if no start is logged."""
    starts = [number for number, line in enumerate(log) if START_LINE in line]
    # An attempt that has only just begun has logged nothing useful yet, so the one before it counts as well.
    settled = [number for number in starts if len(log) - number > START_LINES]
    return list(log[settled[-1] :]) if settled else list(log)


def _fill_explanation(case: BoardCase, what: str, cure: str) -> HostFinding:
    words = {"superlink": case.superlink, "host": case.superlink_host, "provision": case.cure_command("provision")}
    return make_problem(what.format(**words), cure.format(**words))


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
    return make_problem(what, f"{ON_BOARD}: date; sudo chronyc makestep; the server's clock may be the wrong one")


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
    from_board = f"{ON_BOARD}: nc -vz {case.superlink.replace(':', ' ')}"
    return make_problem(what, f"the network between them, the server's firewall; {from_board}")


RENEWAL = (
    "fedge fleet keys --folder KEYS --renew --host {host} (and every other name), then fedge fleet provision "
    "--limit server"
)
PORT_CURE = "supernode_superlink in the inventory: the boards' port; then {provision}"
REFUSALS: Sequence[tuple[str, RefusalMeaning | tuple[str, str]]] = (
    (
        r"certificate is not valid for|hostname mismatch|ip address mismatch",
        (
            "it dials {host}, which is not in the server's certificate",
            RENEWAL,
        ),
    ),
    (
        r"certificate has expired|certificate is not yet valid",
        (
            "the certificate at {superlink} does not hold today by the board's clock",
            "fedge fleet keys --folder KEYS --check, and look at the board's clock",
        ),
    ),
    (
        r"certificate verify failed|certificate_verify_failed",
        (
            "it does not trust the certificate at {superlink}: another CA signed it than the ca.crt on the board",
            "supernode_ca_certificate in the inventory: the CA of server.crt; then {provision}",
        ),
    ),
    (
        r"wrong.version.number",
        ("what listens at {superlink} does not speak TLS; it is not the proxy before the SuperLink", PORT_CURE),
    ),
    (
        r"400 bad request|option `--insecure` was set",
        ("it speaks plain text to {superlink}, which takes TLS alone", "{provision}"),
    ),
    (
        r"code: 2001\b|authentication is enabled",
        ("its SuperNode runs without its key, and is refused", "{provision}"),
    ),
    (NOT_ACTIVATED, _explain_not_activated),
    (r"403 forbidden", ("what listens at {superlink} refuses what a SuperNode asks for (403)", PORT_CURE)),
    (r"terminated gracefully|401 unauthorized", _explain_bad_signature),
    (r"connection attempt failed", _explain_unreachable),
)
"""Log patterns of Flower 1.41's SuperNode with what they mean, or its words and cure; the first match counts."""


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
    look = f"{ON_BOARD}: journalctl -u {unit}; then {up}"
    if error_kind(has) is not None:
        yield _unreadable_service(unit, has, ON_BOARD)
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
            yield _unreadable_service(unit, has, ON_SERVER)
        elif state == "absent":
            yield make_problem(f"{unit} is absent, so {effect}", f"fedge fleet provision --limit {server}")
        elif state not in (None, "active"):
            yield make_problem(f"{unit} is {state}, so {effect}{_quote_log(has)}", f"fedge fleet up --limit {server}")


def _quote_log(has: Facts) -> str:
    line = find_reason_line(as_lines(has.get("log")))
    return f'; it said: "{line}"' if line else ""


def _unreadable_service(unit: str, has: Facts, place: str) -> HostFinding:
    return make_problem(f"what {unit} does could not be asked: {has.get('text')}", f"{place}: systemctl status {unit}")


BoardRule = Callable[[BoardCase], Iterator[HostFinding]]
PROGRAMS = (("powerd", "power daemon", "fedge-powerd"), ("worker", "worker", "fedge-worker"))
"""Programs on a board that the client talks to: key in the facts, display name, service unit."""


def check_name(case: BoardCase) -> Iterator[HostFinding]:
    """Find a board whose own name differs from the inventory's."""
    called = as_text(case.facts.get("board"))
    if called is not None and called != case.name:
        yield make_problem(
            f"it calls itself {called}, the inventory calls it {case.name}", case.cure_command("provision")
        )


def check_twins(case: BoardCase) -> Iterator[HostFinding]:
    """Find another board with the same name or key."""
    for other in case.common.twins.get(case.name, ()):
        what = f"has the name or the key of {other} too: one was copied from the other, or both names lead to one board"
        again = case.cure_command("provision", "server")
        yield make_problem(
            what, f"give each an address of its own; on a copy: sudo rm /etc/fedge/keys/node*, then {again}"
        )


def check_services(case: BoardCase) -> Iterator[HostFinding]:
    """Find services that are missing, stopped or restarting; one finding if all are affected alike."""
    states = {
        name: str(case.service(name).get("state")) for name in (*SERVICES, *OPTIONAL_SERVICES) if case.service(name)
    }
    if states and set(states.values()) == {"absent"}:
        yield make_problem("none of fedge's services is installed", case.cure_command("provision"))
        return
    if states and set(states.values()) == {"inactive"}:
        yield make_problem("its services are stopped", case.cure_command("up"))
        return
    refused = find_refusal(case) is not None
    for name in states:
        # A SuperNode that is refused is reported by check_supernode_refusal.
        if name != SUPERNODE or not refused:
            usual = TAKEOVER_RESTARTS if name == SUPERNODE else 0
            yield from check_board_service(name, case.service(name), case.name, usual)


def check_client(case: BoardCase) -> Iterator[HostFinding]:
    """Find a client whose own files cannot be read."""
    client = case.part("client")
    if error_kind(client):
        yield make_problem(f"the client on it cannot be read: {client.get('text')}", case.cure_command("provision"))


def check_protocols(case: BoardCase) -> Iterator[HostFinding]:
    """Find protocol versions that differ between two programs of the board, or from the control node's."""
    own = case.common.own
    for (part, who, _), mine in zip(PROGRAMS, (own.powerd_protocol, own.worker_protocol), strict=True):
        theirs, clients = (
            as_number(case.part(part).get("protocol")),
            as_number(case.part("client").get(f"{part}_protocol")),
        )
        protocol = clients if theirs is None else theirs
        if theirs is not None and clients is not None and theirs != clients:
            what = f"half upgraded: {who} speaks protocol {theirs:g}, the client {clients:g}"
            yield make_problem(what, case.cure_command("upgrade"))
        elif protocol is not None and protocol != mine:
            yield make_problem(
                f"{who} speaks protocol {protocol:g}, this control node {mine}", case.cure_command("upgrade")
            )


def check_flwr_version(case: BoardCase) -> Iterator[HostFinding]:
    """Find a Flower version whose major or minor number differs from the SuperLink's or the control node's.

    At most one problem is found, that with the SuperLink first. Versions that are unknown are not compared.
    """
    flwr = as_text(case.part("client").get("flwr"))
    for who, version in (("the SuperLink", case.common.server_flwr), ("this control node", case.common.own.flwr)):
        if flwr is not None and version is not None and _minor_version(flwr) != _minor_version(version):
            yield make_problem(
                f"has flwr {flwr}, {who} {version}: they do not speak to each other", case.cure_command("upgrade")
            )
            return


def _minor_version(version: str) -> str:
    return ".".join(version.split(".")[:2])


def check_fedge_version(case: BoardCase) -> Iterator[HostFinding]:
    """Find a fedge version that differs from the control node's."""
    fedge, own = as_text(case.facts.get("fedge")), case.common.own.fedge
    if fedge is not None and fedge != own:
        yield make_note(f"has fedge {fedge}, this control node {own}", case.cure_command("upgrade"))


def check_sockets(case: BoardCase) -> Iterator[HostFinding]:
    """Find a power daemon or worker that refuses the training user or does not respond."""
    for part, who, unit in PROGRAMS:
        kind, reason = error_kind(case.part(part)), case.part(part).get("text")
        if kind == "denied":
            # A restart recreates the socket with the right group.
            yield make_problem(
                f"fedge-app may not ask the {who}: {reason}",
                f"{case.cure_command('down')}, then {case.cure_command('up')}",
            )
        elif kind and case.service(unit).get("state") in ("active", None):
            cure = f"{ON_BOARD}: journalctl -u {unit}; then {case.cure_command('up')}"
            yield make_problem(f"the {who} does not answer: {reason}", cure)


def check_refused_task(case: BoardCase) -> Iterator[HostFinding]:
    """Find a worker that could not load its last task, for instance because a package of it is missing."""
    refused = as_text(case.part("worker").get("refused"))
    if refused:
        what, _, cure = refused.rpartition("; ")
        yield make_problem(f"its worker could not load the last task: {what or refused}", cure if what else "")


def check_supernode_refusal(case: BoardCase) -> Iterator[HostFinding]:
    """Find a SuperNode that the SuperLink refuses."""
    found = find_refusal(case)
    if found is not None:
        yield found


def check_node(case: BoardCase) -> Iterator[HostFinding]:
    """Find a board whose key is unknown to the SuperLink, registered under another name, or offline."""
    nodes, refused = case.common.nodes, find_refusal(case)
    if nodes is None or not nodes.has_names:
        return
    register = case.cure_command("provision", "server")
    if case.node is None:
        if refused is None or "not registered" not in refused.what:
            other = f"; another key is registered as {case.name}" if nodes.find_by_name(case.name) else ""
            yield make_problem(f"its key is not registered at the SuperLink{other}", register)
    elif case.node.name is not None and case.node.name != case.name:
        cure = f"{unregister_command(case.node.node_id)}; then {register}"
        yield make_problem(f"its key is registered as {case.node.name}", cure)
    elif not case.is_online and refused is None:
        cure = f"{ON_BOARD}: journalctl -u {SUPERNODE}; then {case.cure_command('up')}"
        yield make_problem(f"its node is {case.node.status}, not online", cure)


def check_earlier_key(case: BoardCase) -> Iterator[HostFinding]:
    """Find a node that has the board's name but an earlier key."""
    nodes, refused = case.common.nodes, find_refusal(case)
    if nodes is None or (case.node is None and refused is not None and "not registered" in refused.what):
        return
    for node in nodes.find_by_name(case.name):
        if case.key is not None and node.key is not None and node.key != case.key:
            say = make_note if case.is_online else make_problem
            yield say(f"node {node.node_id} has its name and another key, of before", unregister_command(node.node_id))


def check_clock(case: BoardCase) -> Iterator[HostFinding]:
    """Find a clock whose offset exceeds the limits even at the favourable end of its uncertainty."""
    found = case.clock
    if found is None or (found.least_s <= AHEAD_S and found.most_s >= -BEHIND_S):
        return
    side = "ahead of" if found.middle_s > 0 else "behind"
    off, give = format_duration(abs(found.middle_s)), format_duration(found.uncertainty_s)
    what = (
        f"its clock is {off} {side} the server's (give or take {give}); the SuperLink takes 5 s ahead and 5 min behind"
    )
    reached = "jetson_base_time_servers in the inventory names a server that it reaches"
    yield make_problem(what, f"{ON_BOARD}: sudo chronyc makestep; {reached}")


def check_disk(case: BoardCase) -> Iterator[HostFinding]:
    """Find nearly full disks that fedge writes to."""
    yield from find_full_folders(case.part("disk_free_mb"), f"{ON_BOARD}: sudo du -xhd1 /var /srv | sort -h")


def find_full_folders(free_mb: Facts, cure: str) -> Iterator[HostFinding]:
    """Yield a problem for each folder with less than ``LEAST_FREE_MB`` free."""
    for folder, value in free_mb.items():
        free = as_number(value)
        if free is not None and free < LEAST_FREE_MB:
            yield make_problem(f"only {free:.0f} MB free at {folder}; {LEAST_FREE_MB} are needed", cure)


def check_telemetry(case: BoardCase) -> Iterator[HostFinding]:
    """Find a board with telemetry enabled from which the server has not received any for a while."""
    if case.service(TELEMETRY).get("state") != "active" or case.common.ages_s is None:
        return
    age_s, cure = case.heard_s, f"{ON_BOARD}: journalctl -u {TELEMETRY}"
    if age_s is None:
        yield make_note("telemetry: no sample of it has come yet", cure)
    elif age_s > SILENT_S:
        yield make_note(f"telemetry: last sample {format_duration(age_s)} ago", cure)


def check_certificate(case: BoardCase) -> Iterator[HostFinding]:
    """Find a telemetry certificate that has expired or is about to."""
    left_s = case.certificate_left_s
    if left_s is None or left_s >= CERTIFICATE_DAYS * 86400:
        return
    when = f"ended {format_duration(-left_s)} ago" if left_s < 0 else f"ends in {left_s / 86400:.0f} days"
    yield make_problem(f"the certificate of its telemetry {when}", case.cure_command("provision"))


def check_mode_holder(case: BoardCase) -> Iterator[HostFinding]:
    """Note a program that currently holds the board's power mode."""
    holder, left_s = as_text(case.part("powerd").get("holder")), as_number(case.part("powerd").get("holder_left_s"))
    if holder is not None:
        left = f" for {left_s:.0f} s more" if left_s is not None else ""
        yield make_note(f"the power daemon holds its mode for {holder}{left}", "wait, or stop what holds it")


def check_changes_allowed(case: BoardCase) -> Iterator[HostFinding]:
    """Find a power daemon that has stopped changing power modes."""
    stopped = as_text(case.part("powerd").get("stopped"))
    if stopped is not None:
        yield make_problem(f"the power daemon refuses changes: {stopped}", f"{ON_BOARD}: journalctl -u fedge-powerd")


def check_temperature(case: BoardCase) -> Iterator[HostFinding]:
    """Note a temperature close to thermal throttling."""
    hot_c = as_number(case.part("powerd").get("temperature_c"))
    if hot_c is not None and hot_c >= HOT_C:
        yield make_note(f"{hot_c:.0f} C hot", "look at its fan and its surroundings; the mode may be limited by heat")


BOARD_RULES: Sequence[BoardRule] = (
    check_name,
    check_twins,
    check_services,
    check_client,
    check_protocols,
    check_flwr_version,
    check_fedge_version,
    check_sockets,
    check_refused_task,
    check_supernode_refusal,
    check_node,
    check_earlier_key,
    check_clock,
    check_disk,
    check_mode_holder,
    check_changes_allowed,
    check_temperature,
    check_telemetry,
    check_certificate,
)
"""Rules in the order in which their findings are shown."""
