"""Health rules for a board, one small function each, collected in ``BOARD_RULES``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from experiments.fleet.status import service_rules
from experiments.fleet.status.board_case import (
    AHEAD_S,
    BEHIND_S,
    CERTIFICATE_DAYS,
    HOT_C,
    LEAST_FREE_MB,
    OPTIONAL_SERVICES,
    SERVICES,
    SILENT_S,
    SUPERNODE,
    TAKEOVER_RESTARTS,
    TELEMETRY,
    BoardCase,
)
from experiments.fleet.status.host_facts import Facts, as_number, as_text, error_kind, format_duration
from experiments.fleet.status.status_records import HostFinding, make_note, make_problem
from experiments.fleet.status.superlink_nodes import unregister_command
from experiments.fleet.status.supernode_refusal import find_refusal

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
            yield from service_rules.check_board_service(name, case.service(name), case.name, usual)


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
            cure = f"on the board: journalctl -u {unit}; then {case.cure_command('up')}"
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
        cure = f"on the board: journalctl -u {SUPERNODE}; then {case.cure_command('up')}"
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
    yield make_problem(what, f"on the board: sudo chronyc makestep; {reached}")


def check_disk(case: BoardCase) -> Iterator[HostFinding]:
    """Find nearly full disks that fedge writes to."""
    yield from find_full_folders(
        case.part("disk_free_mb"), f"on the board: sudo du -xhd1 /var /srv | sort -h ({case.name})"
    )


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
    age_s, cure = case.heard_s, f"on the board: journalctl -u {TELEMETRY}"
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
        yield make_problem(f"the power daemon refuses changes: {stopped}", "on the board: journalctl -u fedge-powerd")


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
