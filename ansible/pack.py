"""Makes on the control node what hosts are sent: the project, a Python, certificates, proxy and firewall."""
# ruff: noqa: INP001 - a program beside the playbooks

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from experiments.fleet.nginx_proxy import (  # noqa: E402
    ALL_ADDRESSES,
    CONTROL_PORT,
    FLEET_PORT,
    SUPERLINK_PORT,
    NginxProxy,
    build_configuration,
    build_firewall_rules,
)
from fedge.errors import BadInput  # noqa: E402

TEXTS = ("proxy", "firewall", "certificate")
CLIENT = ("fedge", "clients", "experiments", "server")
"""Packages sent to boards: they need ``experiments`` for the command line only; a run brings ``fedge`` and
``clients``.
"""
KINDS = {".py", ".yaml", ".json", ".html", ".css", ".js", ".typed"}
TARGET = "/usr/lib/fedge-python"
HEADER = f'#!/bin/sh\nset -eu\numask 022\nmkdir -p {TARGET}\ntail -n +7 "$0" | tar -xzf - -C {TARGET}\nexit 0\n'
"""Shell script that runs on the board; the archive begins at line 7."""


def main() -> int:
    """Print the path of the archive, or a configuration; exit with code 2 and a sentence for invalid input."""
    asked = _parser().parse_args()
    try:
        print(_make_answer(asked), end="" if asked.what in TEXTS else "\n")  # noqa: T201 - its answer to Ansible
    except BadInput as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _make_answer(asked: argparse.Namespace) -> object:
    if asked.what == "proxy":
        addresses, networks = tuple(asked.listen) or ALL_ADDRESSES, tuple(asked.management)
        ports = {
            "superlink_port": asked.superlink_port,
            "fleet_port": asked.port,
            "control_port": asked.management_port,
        }
        return build_configuration(
            NginxProxy(
                asked.keys,
                addresses=addresses,
                management=networks,
                telemetry=asked.telemetry,
                revocations=asked.revocations,
                **ports,
            )
        )
    if asked.what == "certificate":
        return certificate(asked, sys.stdin.read()).decode()
    if asked.what == "firewall":
        return build_firewall_rules(asked.account, asked.superlink_port)
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.what == "wheels":
        return wheels(asked.folder, asked.out)
    return client(asked.out) if asked.what == "client" else bootstrap(asked)


def certificate(asked: argparse.Namespace, request: str) -> bytes:
    """Sign a board's certificate request (PEM), record the certificate beside the CA's key, and return it as PEM.

    ``asked`` has the board's name, the CA's files and the validity in days.

    Raises:
        BadInput: The request or the CA is invalid.
    """
    from experiments.fleet.key_folder import BOARD_DAYS, encode_certificate, make_board, parse_request, read_signer
    from experiments.fleet.revocation import record_certificate

    ca = read_signer(asked.ca, asked.ca_key)
    made = make_board(
        ca, request=parse_request(request), board=asked.board, now=datetime.now(UTC), days=asked.days or BOARD_DAYS
    )
    record_certificate(asked.ca_key.parent, made)
    return encode_certificate(made)


def client(out: Path) -> Path:
    """Pack the client's files into an archive whose name changes exactly when a file does; return its path."""
    files = [(name, path.read_bytes(), 0o644) for name, path in _client_files()]
    path = out / f"client-{_digest((name, content) for name, content, _ in files)}.tar.gz"
    return _find_packed(path) or _write(path, b"", _make_tar(files))


def _digest(named: Iterable[tuple[str, bytes]]) -> str:
    """Return 16 hex digits that identify the named contents."""
    digest = hashlib.sha256()
    for name, content in named:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _find_packed(path: Path) -> Path | None:
    """Return an existing archive of the same contents, which its name identifies; None if there is none."""
    return path.resolve() if path.is_file() else None


def _client_files() -> Iterator[tuple[str, Path]]:
    """Yield each file with its name in the archive."""
    yield "LICENSE", Path(__file__).resolve().with_name("LICENSE")
    for folder in CLIENT:
        found = sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in KINDS and path.is_file())
        yield from ((path.relative_to(ROOT).as_posix(), path) for path in found)


def bootstrap(asked: argparse.Namespace) -> Path:
    """Pack uv, and the Python in ``asked.python`` if given, into a shell script that unpacks them below ``TARGET``.

    Boards with the same processor and the same Python share one script. Returns the path of the script.
    """
    wheel = asked.uv or _uv_wheel(asked.lock, asked.machine, asked.wheels, asked.out)
    sources = [wheel, asked.python] if asked.python else [wheel]
    digest = _digest([("header", HEADER.encode()), *((path.name, path.read_bytes()) for path in sources)])
    path = asked.out / f"bootstrap-{asked.machine}-{digest}.sh"
    return _find_packed(path) or _write(path, HEADER.encode(), _make_bootstrap_archive(wheel, asked.python))


def wheels(folder: Path, out: Path) -> Path:
    """Pack a folder's wheels into one archive in ``out``, named after their names, sizes and times; return its path.

    Raises:
        SystemExit: The folder has no wheels.
    """
    found = sorted(folder.glob("*.whl"))
    if not found:
        raise SystemExit(f"{folder}: got no wheel; a folder filled as docs/how-to/provisioning.md says would be right")
    told = ((path.name, f"{path.stat().st_size} {path.stat().st_mtime_ns}".encode()) for path in found)
    made = out / f"wheels-{_digest(told)}.tar"
    if not made.is_file():
        unfinished = _temporary_path(made)
        with tarfile.open(unfinished, "w") as target:
            for wheel in found:
                target.add(wheel, wheel.name)
        unfinished.replace(made)
    return made.resolve()


def _make_bootstrap_archive(wheel: Path, python: Path | None) -> bytes:
    files = [("bin/uv", _read_program(wheel, "uv"), 0o755)]
    if python is None:
        return _make_tar(files)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as target, tarfile.open(python) as source:
        _add_files(target, files)
        _copy_python(source, target)
    return packed.getvalue()


def _copy_python(source: tarfile.TarFile, target: tarfile.TarFile) -> None:
    """Copy a self-contained Python from ``python/`` to ``versions/archive/``, owned by root."""
    for member in source:
        head, _, rest = member.name.partition("/")
        if head != "python" or ".." in rest.split("/"):
            raise SystemExit(f"the Python: got {member.name!r}; an archive of one folder 'python' would be right")
        content = source.extractfile(member) if member.isreg() else None
        member.name = f"versions/archive/{rest}".rstrip("/")
        if member.islnk():
            member.linkname = f"versions/archive/{member.linkname.partition('/')[2]}"
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        target.addfile(member, content)


def _uv_wheel(lock: Path, machine: str, wheels: Path | None, out: Path) -> Path:
    """Return the wheel of uv in the locked version for the board's processor.

    It is taken from ``wheels``, else downloaded to ``out``.
    """
    version = next(line.partition("==")[2] for line in lock.read_text("utf-8").splitlines() if line.startswith("uv=="))
    pattern = f"uv-{version}-*{machine}*.whl"
    folders = [wheels] if wheels else [out]
    found = [path for folder in folders for path in folder.glob(pattern)]
    if not found and wheels:
        right = "a folder filled as docs/how-to/provisioning.md says would be right"
        raise SystemExit(f"{wheels}: got no {pattern}; {right}")
    if not found:
        wanted = ["--only-binary=:all:", "--no-deps", f"--platform=manylinux2014_{machine}", f"uv=={version}"]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "-d", str(out), *wanted], check=True, stdout=2)
        found = list(out.glob(pattern))
    return found[0]


def _read_program(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        inside = next(entry for entry in archive.namelist() if entry.endswith(f".data/scripts/{name}"))
        return archive.read(inside)


def _make_tar(files: list[tuple[str, bytes, int]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as target:
        _add_files(target, files)
    return packed.getvalue()


def _add_files(target: tarfile.TarFile, files: list[tuple[str, bytes, int]]) -> None:
    """Add plain files without time or owner, so that equal files give equal archives."""
    for name, content, mode in files:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(content), mode
        target.addfile(entry, io.BytesIO(content))


def _temporary_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _write(path: Path, header: bytes, tar: bytes) -> Path:
    unfinished = _temporary_path(path)
    unfinished.write_bytes(header + gzip.compress(tar, compresslevel=6, mtime=0))
    unfinished.replace(path)
    return path.resolve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="what", required=True)
    for name in ("client", "bootstrap", "wheels"):
        kinds.add_parser(name).add_argument("out", type=Path)
    kinds.choices["wheels"].add_argument("folder", type=Path)
    start = kinds.choices["bootstrap"]
    start.add_argument("--machine", required=True, help="as uname -m says it")
    start.add_argument("--lock", type=Path, required=True)
    for name in ("--uv", "--wheels", "--python"):
        start.add_argument(name, type=Path)
    for name in TEXTS:
        kinds.add_parser(name)
    for name in ("proxy", "firewall"):
        kinds.choices[name].add_argument("--superlink-port", type=int, default=SUPERLINK_PORT)
    signed = kinds.choices["certificate"]
    signed.add_argument("board", help="its name; the request comes on standard input")
    signed.add_argument("--ca", type=Path, required=True)
    signed.add_argument("--ca-key", type=Path, required=True)
    signed.add_argument("--days", type=int)
    kinds.choices["firewall"].add_argument("--account", action="append", default=[])
    before = kinds.choices["proxy"]
    before.add_argument("--telemetry", type=Path, help="the socket that takes what boards tell of themselves")
    before.add_argument("--revocations", type=Path, help="the server's list of revoked certificates")
    before.add_argument("--keys", type=Path, default=Path("/etc/fedge/tls"))
    before.add_argument("--port", type=int, default=FLEET_PORT)
    before.add_argument("--management-port", type=int, default=CONTROL_PORT)
    for name in ("--listen", "--management"):
        before.add_argument(name, action="append", default=[])
    return parser


if __name__ == "__main__":
    sys.exit(main())
