"""The fleet that a command refers to, and the rules that find errors in its inventory without contacting a host."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from experiments.fleet import inventory
from experiments.fleet.inventory import Inventory, InventoryHost, format_names
from experiments.fleet.playbook_runner import PlaybookCall
from fedge.errors import BadInput
from fedge.network_addresses import is_address

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
    "superlink_wheelhouse": "the folder of wheels for requirements.lock and torch.lock",
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
RENEW = "`fedge fleet keys --folder DIR --renew"
SIGNATURE_ADVICE = "the server's certificate of that CA; every board would refuse this one"
HOST_PORT = "host:port, such as fleet.lan:9443"


@dataclass(frozen=True, slots=True)
class InventoryContext:
    """Input of the inventory rules.

    Attributes:
        folder: The folder of the playbooks; relative paths start there.
        now: Current time, time zone aware.
    """

    inventory: Inventory
    folder: Path
    now: datetime

    def resolve_file(self, text: str) -> Path:
        """Return the path of the file that a playbook would open for ``text``."""
        return self.folder / Path(text).expanduser()

    def list_board_values(self, key: str) -> tuple[str, ...]:
        """Return the distinct values that boards have for a variable."""
        return tuple(dict.fromkeys(board.text(key) for board in self.inventory.boards if board.text(key)))


InventoryRule = Callable[[InventoryContext], Iterator[BadInput]]


def is_local_file(text: str) -> bool:
    """Return whether a value names a local file: not empty, not a URL, no template expression."""
    return bool(text) and "://" not in text and "{{" not in text


def find_problems(found: Inventory, folder: Path, now: datetime) -> list[BadInput]:
    """Return all problems of an inventory; reads the files that it names, relative to the folder of the playbooks.

    The validity of certificates is checked at ``now``, which is time zone aware.
    """
    plan = InventoryContext(found, folder, now)
    problems = [problem for rule in RULES for problem in rule(plan)]
    # Certificates are checked only if no file is missing, so that one cause is not reported twice.
    return problems or [problem for rule in CERTIFICATE_RULES for problem in rule(plan)]


def find_example_hosts(found: Inventory) -> list[BadInput]:
    """Return a problem for each host that still has an address of the example inventory."""
    return list(_find_example_values(found, only="ansible_host"))


def find_placeholders(plan: InventoryContext) -> Iterator[BadInput]:
    """Yield one problem per variable that still has the example's value, with the affected hosts."""
    yield from _find_example_values(plan.inventory)


def _find_example_values(found: Inventory, only: str | None = None) -> Iterator[BadInput]:
    examples: dict[str, tuple[list[str], list[str]]] = {}
    for key, value, names in _list_values(found):
        if only in {None, key} and isinstance(value, str) and is_example_value(value):
            values, hosts = examples.setdefault(key, ([], []))
            values.append(repr(value))
            hosts += [name for name in names if name not in hosts]
    for key, (values, hosts) in examples.items():
        where = f"{found.path}: {key} of {format_names(hosts, NAMES_SHOWN)}"
        yield BadInput(where, format_names(values, VALUES_SHOWN), "your own: this is the example's")


def is_example_value(text: str) -> bool:
    """Return whether a value contains an address or a path that occurs only in the example."""
    addresses = filter(is_address, ADDRESS.findall(text))
    return text.startswith(EXAMPLE_FOLDER) or any(
        ipaddress.ip_address(address) in net for address in addresses for net in EXAMPLES
    )


def find_missing_variables(plan: InventoryContext) -> Iterator[BadInput]:
    """Yield a problem for each required variable that a board or the server lacks."""
    found = plan.inventory
    yield from _list_missing((found.server,), NEEDED_SERVER, found.path)
    yield from _list_missing(found.boards, NEEDED_BOARD, found.path)


def _list_missing(hosts: Sequence[InventoryHost], keys: Sequence[str], path: Path) -> Iterator[BadInput]:
    for key in keys:
        names = [host.name for host in hosts if not host.text(key)]
        if names:
            where = f"{path}: {key} of {format_names(names, NAMES_SHOWN)}"
            yield BadInput(where, "nothing", FILES.get(key, ADDRESS_ADVICE))


def find_absent_files(plan: InventoryContext) -> Iterator[BadInput]:
    """Yield a problem for each named local file that does not exist."""
    for key, value, names in _list_values(plan.inventory):
        if key in FILES and isinstance(value, str) and is_local_file(value) and not is_example_value(value):
            path = plan.resolve_file(value)
            if not path.exists():
                where = f"{plan.inventory.path}: {key} of {format_names(names, NAMES_SHOWN)}"
                yield BadInput(where, f"{path}, where nothing is", FILES[key])


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
"""Rules in the order of reporting; ``CERTIFICATE_RULES`` run only if none of these finds a problem."""


# Certificates ---------------------------------------------------------------------------------------------------------


def find_unreadable(plan: InventoryContext) -> Iterator[BadInput]:
    """Yield a problem for every certificate file that cannot be parsed."""
    yield from (
        found
        for path in (*_list_authorities(plan), *_list_server_files(plan))
        if isinstance(found := _load_certificate(path), BadInput)
    )


def find_invalid_periods(plan: InventoryContext) -> Iterator[BadInput]:
    """Yield a problem for every certificate that has expired or is not valid yet."""
    for paths, cure in (
        (_list_authorities(plan), "`fedge fleet keys --folder NEW`"),
        (_list_server_files(plan), f"{RENEW}`"),
    ):
        for path, certificate in _load_certificates(paths):
            begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            if plan.now > ends:
                right = f"one that holds: {cure} makes a new one"
                yield BadInput(str(path), f"a certificate that ended on {ends:%Y-%m-%d}", right)
            if plan.now < begins:
                right = "one that holds, or this machine's clock set"
                yield BadInput(str(path), f"a certificate that begins on {begins:%Y-%m-%d}", right)


def find_unsigned(plan: InventoryContext) -> Iterator[BadInput]:
    """Yield a problem if the server's certificate is not signed by the CA of the boards and of the SuperLink."""
    for path, server in _load_certificates(_list_server_files(plan)):
        for ca, authority in _load_certificates(_list_authorities(plan)):
            if _is_foreign(server, authority):
                yield BadInput(str(path), f"a certificate that {ca} did not sign", SIGNATURE_ADVICE)


def find_missing_hosts(plan: InventoryContext) -> Iterator[BadInput]:
    """Yield a problem for every host that boards connect to and that the server's certificate does not cover."""
    for path, certificate in _load_certificates(_list_server_files(plan)):
        for address in filter(is_local_file, plan.list_board_values("supernode_superlink")):
            yield from _check_host(f"{plan.inventory.path}: supernode_superlink", address, path, certificate)


def _check_host(where: str, address: str, path: Path, certificate: x509.Certificate) -> Iterator[BadInput]:
    host, named = address.rpartition(":")[0].strip("[]").lower(), certificate_hosts(certificate)
    if not host:
        yield BadInput(where, repr(address), HOST_PORT)
    elif host not in named:
        got = f"{address}, but {path} holds for {', '.join(sorted(named))} alone: every board would refuse it"
        yield BadInput(where, got, f"one of those, or {RENEW} --host {host}` for a certificate that has it")


def certificate_hosts(certificate: x509.Certificate) -> frozenset[str]:
    """Return the host names and IP addresses that a certificate is valid for, including loopback."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(name.value).lower() for name in names if isinstance(name, x509.DNSName | x509.IPAddress))


def _list_authorities(plan: InventoryContext) -> list[Path]:
    """Return the distinct CA files, without those whose path still contains a template expression."""
    named = (
        plan.inventory.server.text("superlink_ca_certificate"),
        *plan.list_board_values("supernode_ca_certificate"),
    )
    return [plan.resolve_file(text) for text in dict.fromkeys(named) if is_local_file(text)]


def _list_server_files(plan: InventoryContext) -> list[Path]:
    text = plan.inventory.server.text("superlink_certificate")
    return [plan.resolve_file(text)] if is_local_file(text) else []


def _load_certificates(paths: Sequence[Path]) -> Iterator[tuple[Path, x509.Certificate]]:
    """Yield the path and the parsed certificate of every readable file."""
    for path in paths:
        found = _load_certificate(path)
        if isinstance(found, x509.Certificate):
            yield path, found


def _load_certificate(path: Path) -> x509.Certificate | BadInput:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no certificate"
        return BadInput(str(path), "a file that is no certificate", f"a certificate in PEM ({reason})")


def _is_foreign(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 -- whatever it is, it is not that CA's signature
        return True
    return False


CERTIFICATE_RULES: Sequence[InventoryRule] = (find_unreadable, find_invalid_periods, find_unsigned, find_missing_hosts)


ROOT = Path(__file__).resolve().parents[2]
INSTALLED_PLAYBOOKS = ROOT / "fedge_playbooks"
PLAYBOOKS = INSTALLED_PLAYBOOKS if INSTALLED_PLAYBOOKS.is_dir() else ROOT / "ansible"
"""The playbooks of the installed package or of the checkout."""
INVENTORY_VARIABLE = "FEDGE_INVENTORY"


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Files of a fleet.

    Attributes:
        limit: Ansible host pattern, or None for all hosts.
    """

    inventory: Path
    playbooks: Path
    limit: str | None = None


@dataclass(frozen=True, slots=True)
class SelectedFleet:
    """A fleet with its inventory."""

    options: FleetOptions
    inventory: Inventory
    hosts: frozenset[str]

    @property
    def boards(self) -> tuple[str, ...]:
        """The boards within the limit."""
        return tuple(name for name in self.inventory.board_names if name in self.hosts)

    def build_call(self, playbook: str) -> PlaybookCall:
        """Return a call of a playbook on this fleet."""
        return PlaybookCall(self.options.playbooks, playbook, self.options.inventory.resolve(), self.options.limit)


def build_options(path: Path | None, playbooks: Path | None, limit: str | None = None) -> FleetOptions:
    """Fill in defaults for missing options."""
    folder = (playbooks or PLAYBOOKS).resolve()
    if not folder.is_dir():
        raise BadInput("--playbooks", f"{folder}, where nothing is", "a folder like ansible/ of fedge's checkout")
    named = os.environ.get(INVENTORY_VARIABLE)
    # An installed package is no place for a user's file.
    usual = Path() if folder == INSTALLED_PLAYBOOKS else folder
    return FleetOptions(path or (Path(named) if named else usual / "inventory.yml"), folder, limit)


def read_fleet(options: FleetOptions) -> SelectedFleet:
    """Read the inventory.

    Raises:
        BadInput: If the inventory, the limit or a host's address is invalid.
    """
    fleet = _read_inventory(options)
    raise_problems(find_example_hosts(fleet.inventory), fleet)
    return fleet


def read_checked_fleet(options: FleetOptions) -> SelectedFleet:
    """Read the inventory and check the files that it names.

    Raises:
        BadInput: With all problems found.
    """
    fleet = _read_inventory(options)
    selected = replace(
        fleet.inventory, boards=tuple(board for board in fleet.inventory.boards if board.name in fleet.hosts)
    )
    raise_problems(find_problems(selected, options.playbooks, datetime.now(UTC)), fleet)
    return fleet


def _read_inventory(options: FleetOptions) -> SelectedFleet:
    whole = inventory.read_inventory(options.inventory, options.playbooks)
    if options.limit is None:
        return SelectedFleet(options, whole, frozenset({whole.server.name, *whole.board_names}))
    return SelectedFleet(options, whole, frozenset(inventory.match_hosts(whole, options.playbooks, options.limit)))


def raise_problems(problems: Sequence[BadInput], fleet: SelectedFleet) -> None:
    """Raise ``BadInput`` with all problems of an inventory, before any host is contacted."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise BadInput(str(fleet.options.inventory), f"{len(problems)} problems", f"fix them first:{listed}")
