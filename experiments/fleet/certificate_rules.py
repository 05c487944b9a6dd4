"""Rules that check the certificates named in an inventory as the boards and the SuperLink would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509

from experiments.fleet.inventory_problem import InventoryContext, InventoryProblem, InventoryRule, is_local_file

RENEW = "`fedge fleet keys --out DIR --renew"
SIGNATURE_ADVICE = "the server's certificate of that CA; every board would refuse this one"
HOST_PORT = "host:port, such as fleet.lan:9443"


def find_unreadable(plan: InventoryContext) -> Iterator[InventoryProblem]:
    """Yield a problem for every certificate file that cannot be parsed."""
    yield from (
        found
        for path in (*_list_authorities(plan), *_list_server_files(plan))
        if isinstance(found := _load_certificate(path), InventoryProblem)
    )


def find_invalid_periods(plan: InventoryContext) -> Iterator[InventoryProblem]:
    """Yield a problem for every certificate that has expired or is not valid yet."""
    for paths, cure in (
        (_list_authorities(plan), "`fedge fleet keys --out NEW`"),
        (_list_server_files(plan), f"{RENEW}`"),
    ):
        for path, certificate in _load_certificates(paths):
            begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            if plan.now > ends:
                right = f"one that holds: {cure} makes a new one"
                yield InventoryProblem(str(path), f"a certificate that ended on {ends:%Y-%m-%d}", right)
            if plan.now < begins:
                right = "one that holds, or this machine's clock set"
                yield InventoryProblem(str(path), f"a certificate that begins on {begins:%Y-%m-%d}", right)


def find_unsigned(plan: InventoryContext) -> Iterator[InventoryProblem]:
    """Yield a problem if the server's certificate is not signed by the CA of the boards and of the SuperLink."""
    for path, server in _load_certificates(_list_server_files(plan)):
        for ca, authority in _load_certificates(_list_authorities(plan)):
            if _is_foreign(server, authority):
                yield InventoryProblem(str(path), f"a certificate that {ca} did not sign", SIGNATURE_ADVICE)


def find_missing_hosts(plan: InventoryContext) -> Iterator[InventoryProblem]:
    """Yield a problem for every host that boards connect to and that the server's certificate does not cover."""
    for path, certificate in _load_certificates(_list_server_files(plan)):
        for address in filter(is_local_file, plan.list_board_values("supernode_superlink")):
            yield from _check_host(f"{plan.inventory.path}: supernode_superlink", address, path, certificate)


def _check_host(where: str, address: str, path: Path, certificate: x509.Certificate) -> Iterator[InventoryProblem]:
    host, named = address.rpartition(":")[0].strip("[]").lower(), certificate_hosts(certificate)
    if not host:
        yield InventoryProblem(where, repr(address), HOST_PORT)
    elif host not in named:
        got = f"{address}, but {path} holds for {', '.join(sorted(named))} alone: every board would refuse it"
        yield InventoryProblem(where, got, f"one of those, or {RENEW} --host {host}` for a certificate that has it")


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


def _load_certificate(path: Path) -> x509.Certificate | InventoryProblem:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no certificate"
        return InventoryProblem(str(path), "a file that is no certificate", f"a certificate in PEM ({reason})")


def _is_foreign(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 -- whatever it is, it is not that CA's signature
        return True
    return False


RULES: Sequence[InventoryRule] = (find_unreadable, find_invalid_periods, find_unsigned, find_missing_hosts)
