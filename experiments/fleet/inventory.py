"""The fleet's inventory as Ansible reads it: the server, the boards, and what in it could not work."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from experiments.fleet.playbooks import environment, program
from fedge.errors import BadInput

SERVER, BOARDS = "server", "boards"
SEALED = "{{ in a vault }}"
READ_WITHIN_S = 120.0
"""A vault or a plug-in may take its time; chosen by us."""
EXAMPLES = tuple(ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"))
"""Addresses that exist in documentation alone, and so in the example."""
EXAMPLE_FOLDER = "/secure/"
FILES: dict[str, str] = {
    "supernode_ca_certificate": "the CA's certificate, the ca.crt of `fedge fleet keys`",
    "superlink_ca_certificate": "the CA's certificate, the ca.crt of `fedge fleet keys`",
    "superlink_certificate": "the server's certificate, the server.crt of `fedge fleet keys`",
    "superlink_key": "the server's key, the server.key of `fedge fleet keys`",
    "superlink_wheelhouse": "the folder of wheels for requirements.lock",
    "worker_torch": "the wheel of torch for the board's own Python",
    "worker_wheels": "wheels for the board's own Python",
    "python_runtime_archive": "the archive of a self-contained CPython for the board",
    "python_runtime_wheelhouse": "the folder of wheels for board.lock",
    "python_runtime_uv_wheel": "uv's wheel for the board",
}
"""Variables that name files on this machine, and what those are."""
NEEDED_BOARD = ("supernode_superlink", "supernode_ca_certificate")
NEEDED_SERVER = ("superlink_certificate", "superlink_key", "superlink_ca_certificate")


@dataclass(frozen=True, slots=True)
class Member:
    """A host of the inventory with its variables as they stand there: ``{{ ... }}`` is not filled in."""

    name: str
    variables: Mapping[str, Any]

    def text(self, key: str, default: str = "") -> str:
        """A value as text; one that only Ansible can open or fill in is ``{{ ... }}``."""
        value = self.variables.get(key, default)
        if isinstance(value, dict) and "__ansible_vault" in value:
            return SEALED
        return default if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Inventory:
    """One server, and the boards in the order in which Ansible lists them."""

    path: Path
    server: Member
    boards: tuple[Member, ...]

    @property
    def board_names(self) -> tuple[str, ...]:
        return tuple(board.name for board in self.boards)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the inventory that would fail later; ``right`` says what would be right."""

    where: str
    got: str
    right: str

    def __str__(self) -> str:
        return f"{self.where}: got {self.got}; {self.right}"


def read(path: Path, folder: Path) -> Inventory:
    """The inventory as ``ansible-inventory`` reads it with the settings of the playbooks in ``folder``.

    Raises ``BadInput`` for a file that is not there or that Ansible does not take, and without exactly one server.
    """
    return members(listing(path, folder), path)


def listing(path: Path, folder: Path, limit: str | None = None) -> dict[str, Any]:
    """What ``ansible-inventory --list`` prints; it may hold secrets and is never written down."""
    require(path, folder)
    command = [program("ansible-inventory"), "--inventory", str(path.resolve()), "--list"]
    if limit is not None:
        command += ["--limit", limit]
    # In the playbooks' folder, as the playbooks themselves run.
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment(os.environ, folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=READ_WITHIN_S,
        check=False,
    )
    if done.returncode != 0:
        raise BadInput(str(path), "an inventory that Ansible refuses", _complaint(done.stderr))
    listed: dict[str, Any] = json.loads(done.stdout)
    return listed


def require(path: Path, folder: Path) -> None:
    """Raise ``BadInput`` with what to copy, where there is no inventory."""
    if not path.exists():
        example = folder / "inventory.example.yml"
        raise BadInput("--inventory", f"{path}, where nothing is", f"a copy of {example} with your own boards in it")


def _complaint(stderr: str) -> str:
    """The first error of Ansible's, without its marks."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "[ERROR]" in line or line.startswith("ERROR")]
    said = (errors or lines or ["it does not say why"])[0]
    return re.sub(r"^(\[ERROR\]|ERROR!?):?\s*", "", said)


def members(listed: Mapping[str, Any], path: Path) -> Inventory:
    """The server and the boards of a listing."""
    variables = listed.get("_meta", {}).get("hostvars", {})
    servers, boards = (_hosts(listed, group) for group in (SERVER, BOARDS))
    if len(servers) != 1:
        got = f"{len(servers)} hosts ({', '.join(servers)})" if servers else "nothing"
        raise BadInput(f"{path}: group {SERVER!r}", got, "exactly one host, the one that boards dial")
    if not boards:
        raise BadInput(
            f"{path}: group {BOARDS!r}", "nothing", "the boards, one host each, by their names in experiments"
        )
    server, *rest = (Member(name, variables.get(name, {})) for name in (*servers, *boards))
    return Inventory(path, server, tuple(rest))


def hosts(listed: Mapping[str, Any]) -> tuple[str, ...]:
    """Every host of a listing that is the server or a board."""
    return tuple(dict.fromkeys((*_hosts(listed, SERVER), *_hosts(listed, BOARDS))))


def _hosts(listed: Mapping[str, Any], group: str) -> list[str]:
    """The hosts of a group and of the groups in it, each once."""
    entry = listed.get(group, {})
    inside = [name for child in entry.get("children", ()) for name in _hosts(listed, child)]
    return list(dict.fromkeys((*entry.get("hosts", ()), *inside)))


def problems(found: Inventory, folder: Path, now: datetime) -> list[Problem]:
    """What is wrong with an inventory, as far as this machine can know before it touches a board; files are read.

    Paths that are not absolute are taken from the playbooks' ``folder``.
    """
    told = [
        *_placeholders(found),
        *_missing((found.server,), NEEDED_SERVER, found.path),
        *_missing(found.boards, NEEDED_BOARD, found.path),
        *_absent_files(found, folder),
    ]
    # What is said already about a file is not said again about what would be in it.
    return told or list(_certificate_problems(found, folder, now))


def _placeholders(found: Inventory) -> Iterator[Problem]:
    """Each variable once that still has the example's value, with the hosts that have it."""
    right = "your own: this is the example's"
    for key, value, names in _values(found):
        if isinstance(value, str) and _is_example(value):
            yield Problem(f"{found.path}: {key} of {_several(names)}", repr(value), right)


def _is_example(text: str) -> bool:
    if text.startswith(EXAMPLE_FOLDER):
        return True
    found = re.findall(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])", text)
    return any(ipaddress.ip_address(address) in net for address in filter(_is_address, found) for net in EXAMPLES)


def _is_address(text: str) -> bool:
    return all(int(part) < 256 for part in text.split(".")) and not re.search(r"(^|\.)0\d", text)


def _missing(members_: tuple[Member, ...], keys: tuple[str, ...], path: Path) -> Iterator[Problem]:
    for key in keys:
        names = [member.name for member in members_ if not member.text(key)]
        if names:
            right = FILES.get(key, "host:port of the server as boards dial it, such as fleet.lan:9443")
            yield Problem(f"{path}: {key} of {_several(names)}", "nothing", right)


def _absent_files(found: Inventory, folder: Path) -> Iterator[Problem]:
    for key, value, names in _values(found):
        if key in FILES and isinstance(value, str) and _is_local(value) and not _is_example(value):
            path = local_path(value, folder)
            if not path.exists():
                yield Problem(f"{found.path}: {key} of {_several(names)}", f"{path}, where nothing is", FILES[key])


def _is_local(text: str) -> bool:
    """Whether a value names a file that can be looked for: not "", not an address of the web, nothing to fill in."""
    return bool(text) and "://" not in text and "{{" not in text


def local_path(text: str, folder: Path) -> Path:
    """The file that a playbook in ``folder`` takes for ``text``."""
    return folder / Path(text).expanduser()


def _values(found: Inventory) -> Iterator[tuple[str, object, list[str]]]:
    """Every variable's plain values with the hosts that have them; what stands in a list counts as the variable's."""
    seen: dict[tuple[str, str], tuple[object, list[str]]] = {}
    for member in (found.server, *found.boards):
        for key, given in member.variables.items():
            for value in given if isinstance(given, list) else [given]:
                names = seen.setdefault((key, str(value)), (value, []))[1]
                if member.name not in names:
                    names.append(member.name)
    yield from ((key, value, names) for (key, _), (value, names) in seen.items())


def _certificate_problems(found: Inventory, folder: Path, now: datetime) -> Iterator[Problem]:
    """What boards or the SuperLink would refuse about the certificates; files to be filled in later are left out."""
    chosen = {key: found.server.text(key) for key in NEEDED_SERVER}
    authorities = dict.fromkeys((chosen["superlink_ca_certificate"], *_all(found, "supernode_ca_certificate")))
    trusted = []
    for text in filter(_is_local, authorities):
        ca = _load(local_path(text, folder))
        if isinstance(ca, Problem):
            yield ca
            continue
        trusted.append((local_path(text, folder), ca))
        yield from _outdated(local_path(text, folder), ca, now, "`fedge fleet keys --out NEW` makes a new CA")
    path = local_path(chosen["superlink_certificate"], folder)
    if not _is_local(chosen["superlink_certificate"]):
        return
    server = _load(path)
    if isinstance(server, Problem):
        yield server
        return
    yield from _outdated(path, server, now, "`fedge fleet keys --out DIR --renew` makes a new one")
    yield from (
        Problem(str(path), f"a certificate that {ca} did not sign", _RENEW)
        for ca, by in trusted
        if _is_foreign(server, by)
    )
    yield from _unnamed_hosts(found, path, server)


_RENEW = "the server's certificate of that CA; every board would refuse this one"


def _load(path: Path) -> x509.Certificate | Problem:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no certificate"
        return Problem(str(path), "a file that is no certificate", f"a certificate in PEM ({reason})")


def _outdated(path: Path, certificate: x509.Certificate, now: datetime, cure: str) -> Iterator[Problem]:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > ends:
        yield Problem(str(path), f"a certificate that ended on {ends:%Y-%m-%d}", f"one that holds: {cure}")
    if now < begins:
        yield Problem(
            str(path), f"a certificate that begins on {begins:%Y-%m-%d}", "one that holds, or this machine's clock set"
        )


def _is_foreign(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 -- whatever it is, it is not that CA's signature
        return True
    return False


def _unnamed_hosts(found: Inventory, path: Path, certificate: x509.Certificate) -> Iterator[Problem]:
    """Hosts that boards dial and that the server's certificate does not hold for."""
    named = certificate_hosts(certificate)
    for address in filter(_is_local, _all(found, "supernode_superlink")):
        host = address.rpartition(":")[0].strip("[]").lower()
        if not host:
            right = "host:port, such as fleet.lan:9443"
            yield Problem(f"{found.path}: supernode_superlink", repr(address), right)
        elif host not in named:
            got = f"{address}, but {path} holds for {', '.join(sorted(named))} alone: every board would refuse it"
            right = f"one of those, or `fedge fleet keys --out DIR --renew --host {host}` for a certificate that has it"
            yield Problem(f"{found.path}: supernode_superlink", got, right)


def certificate_hosts(certificate: x509.Certificate) -> frozenset[str]:
    """The names and addresses that a certificate holds for, loopback's included."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(name.value).lower() for name in names if isinstance(name, x509.DNSName | x509.IPAddress))


def _all(found: Inventory, key: str) -> tuple[str, ...]:
    """Every value that boards have for a variable, each once."""
    return tuple(dict.fromkeys(board.text(key) for board in found.boards if board.text(key)))


def _several(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"
