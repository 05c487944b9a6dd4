"""Rules that find errors in an inventory without contacting a host."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from experiments.fleet import certificate_rules
from experiments.fleet.inventory import Inventory, InventoryHost, format_names
from experiments.fleet.inventory_problem import InventoryContext, InventoryProblem, InventoryRule, is_local_file

EXAMPLES = tuple(ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"))
"""Networks reserved for documentation (RFC 5737); only the example inventory uses them."""
EXAMPLE_FOLDER = "/secure/"
ADDRESS = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
NAMES_SHOWN, VALUES_SHOWN = 3, 2
FILES: Mapping[str, str] = {
    "supernode_ca_certificate": "the CA's certificate, the ca.crt of `fedge fleet keys`",
    "superlink_ca_certificate": "the CA's certificate, the ca.crt of `fedge fleet keys`",
    "superlink_certificate": "the server's certificate, the server.crt of `fedge fleet keys`",
    "superlink_key": "the server's key, the server.key of `fedge fleet keys`",
    "telemetry_ca_key": "the CA's key, the ca.key of `fedge fleet keys`",
    "telemetry_ca_certificate": "the CA's certificate, the ca.crt of `fedge fleet keys`",
    "superlink_wheelhouse": "the folder of wheels for requirements.lock",
    "worker_torch": "the wheel of torch for the board's own Python",
    "worker_wheels": "wheels for the board's own Python",
    "python_runtime_archive": "the archive of a self-contained CPython for the board",
    "python_runtime_wheelhouse": "the folder of wheels for board.lock",
    "python_runtime_uv_wheel": "uv's wheel for the board",
}
"""Variables that name files on this machine, each with a description of the file."""
NEEDED_BOARD = ("supernode_superlink", "supernode_ca_certificate")
NEEDED_SERVER = ("superlink_certificate", "superlink_key", "superlink_ca_certificate")
ADDRESS_ADVICE = "host:port of the server as boards dial it, such as fleet.lan:9443"


def find_problems(found: Inventory, folder: Path, now: datetime) -> list[InventoryProblem]:
    """Return all problems of an inventory; reads the files that it names, relative to the folder of the playbooks.

    The validity of certificates is checked at ``now``, which is time zone aware.
    """
    plan = InventoryContext(found, folder, now)
    problems = [problem for rule in RULES for problem in rule(plan)]
    # Certificates are checked only if no file is missing, so that one cause is not reported twice.
    return problems or [problem for rule in certificate_rules.RULES for problem in rule(plan)]


def find_example_hosts(found: Inventory) -> list[InventoryProblem]:
    """Return a problem for each host that still has an address of the example inventory."""
    return list(_find_example_values(found, only="ansible_host"))


def find_placeholders(plan: InventoryContext) -> Iterator[InventoryProblem]:
    """Yield one problem per variable that still has the example's value, with the affected hosts."""
    yield from _find_example_values(plan.inventory)


def _find_example_values(found: Inventory, only: str | None = None) -> Iterator[InventoryProblem]:
    examples: dict[str, tuple[list[str], list[str]]] = {}
    for key, value, names in _list_values(found):
        if only in {None, key} and isinstance(value, str) and is_example_value(value):
            values, hosts = examples.setdefault(key, ([], []))
            values.append(repr(value))
            hosts += [name for name in names if name not in hosts]
    for key, (values, hosts) in examples.items():
        where = f"{found.path}: {key} of {format_names(hosts, NAMES_SHOWN)}"
        yield InventoryProblem(where, format_names(values, VALUES_SHOWN), "your own: this is the example's")


def is_example_value(text: str) -> bool:
    """Return whether a value contains an address or a path that occurs only in the example."""
    addresses = filter(_is_address, ADDRESS.findall(text))
    return text.startswith(EXAMPLE_FOLDER) or any(
        ipaddress.ip_address(address) in net for address in addresses for net in EXAMPLES
    )


def _is_address(text: str) -> bool:
    return all(int(part) < 256 for part in text.split(".")) and not re.search(r"(^|\.)0\d", text)


def find_missing_variables(plan: InventoryContext) -> Iterator[InventoryProblem]:
    """Yield a problem for each required variable that a board or the server lacks."""
    found = plan.inventory
    yield from _list_missing((found.server,), NEEDED_SERVER, found.path)
    yield from _list_missing(found.boards, NEEDED_BOARD, found.path)


def _list_missing(hosts: Sequence[InventoryHost], keys: Sequence[str], path: Path) -> Iterator[InventoryProblem]:
    for key in keys:
        names = [host.name for host in hosts if not host.text(key)]
        if names:
            where = f"{path}: {key} of {format_names(names, NAMES_SHOWN)}"
            yield InventoryProblem(where, "nothing", FILES.get(key, ADDRESS_ADVICE))


def find_absent_files(plan: InventoryContext) -> Iterator[InventoryProblem]:
    """Yield a problem for each named local file that does not exist."""
    for key, value, names in _list_values(plan.inventory):
        if key in FILES and isinstance(value, str) and is_local_file(value) and not is_example_value(value):
            path = plan.resolve_file(value)
            if not path.exists():
                where = f"{plan.inventory.path}: {key} of {format_names(names, NAMES_SHOWN)}"
                yield InventoryProblem(where, f"{path}, where nothing is", FILES[key])


def _list_values(found: Inventory) -> Iterator[tuple[str, object, list[str]]]:
    """Yield each variable, each of its scalar values and the hosts with that value; list items count as values."""
    hosts_by_value: dict[tuple[str, str], tuple[object, list[str]]] = {}
    for member in (found.server, *found.boards):
        for key, given in member.variables.items():
            for value in given if isinstance(given, list) else [given]:
                names = hosts_by_value.setdefault((key, str(value)), (value, []))[1]
                if member.name not in names:
                    names.append(member.name)
    yield from ((key, value, names) for (key, _), (value, names) in hosts_by_value.items())


RULES: Sequence[InventoryRule] = (find_placeholders, find_missing_variables, find_absent_files)
"""Rules in the order of reporting; ``certificate_rules.RULES`` run only if none of these finds a problem."""
