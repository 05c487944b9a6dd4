"""Print a host's state as one JSON object for ``status.yml``; changes nothing, and every part fails alone."""
# ruff: noqa: INP001, UP006, UP035, UP045 - a program beside the playbooks, for Python from 3.8 on
# It imports the standard library only, nothing that is installed on the host:
# a partly upgraded board has to answer too.

from __future__ import annotations

import argparse
import contextlib
import functools
import grp
import http.client
import json
import os
import platform
import pwd
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

BOARD_SERVICES = ("fedge-powerd", "fedge-worker", "fedge-supernode", "fedge-ready", "fedge-superexec")
SERVER_SERVICES = ("fedge-superlink", "nginx")
BOARD_EXTRAS, SERVER_EXTRAS = ("fedge-telemetry",), ("fedge-board",)
"""Optional services: reported if their units are installed."""
BOARD_PAGE = "etc/fedge/board.yaml"
APP_USER = "fedge-app"
POWERD_SOCKET = "/run/fedge/powerd.sock"
WORKER_SOCKET = "/run/fedge-worker/worker.sock"
STATE = "/var/lib/fedge/node"

# Time limits in seconds and size limits, so that one part that hangs or floods does not hold up the whole report.
COMMAND_S = 10.0
FLOWER_S = 30.0
SOCKET_S = 12.0
"""The worker answers at once, unless a slow board is importing torch."""
REACH_S = 5.0
LONGEST_LINE = 300
LOG_LINES = 20
LONGEST_FILE = 1 << 16
LONGEST_REPLY = 1 << 20
LONGEST_PAGE = 1 << 23

COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
SECRET = re.compile(r"(?i)(password|passwd|token|secret|authorization|api[-_]?key)(\"?\s*[=:]\s*)\S.*")
FLOWER, NODES = "usr/lib/fedge-server/flower", "usr/lib/fedge-server/nodes.py"
"""Installed by site.yml: starts Flower's commands with the permitted account; lists nodes with their keys."""

Fields = Dict[str, Any]
Run = Callable[[Sequence[str], float], str]
"""Runs a command with a time limit in seconds and returns its output; raises ``OSError`` on failure."""


def run(argv: Sequence[str], limit_s: float) -> str:
    """Run a command for at most ``limit_s`` seconds and return its output.

    Raises:
        OSError: The command failed.
        TimeoutError: The command did not end in time.
    """
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{argv[0]}: no answer within {limit_s:g} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise OSError(f"{argv[0]} ended with {done.returncode}: {clean_line(said[-1])}")
    return done.stdout.decode("utf-8", "replace")


def try_read(read: Callable[[], Any]) -> Any:
    """Return the result of ``read``, or {"error": kind, "text": description} if it raises."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - whatever cannot be read is reported, and the rest goes on
        return describe_error(error)


def describe_error(error: BaseException) -> Fields:
    """Return the report's form of an error."""
    kinds = (
        (PermissionError, "denied"),
        (FileNotFoundError, "absent"),
        (ConnectionRefusedError, "refused"),
        ((TimeoutError, socket.timeout), "timeout"),
        (socket.gaierror, "unresolved"),
        (LookupError, "absent"),
        (ValueError, "malformed"),
    )
    kind = next((name for kinds_of, name in kinds if isinstance(error, kinds_of)), "failed")
    return {"error": kind, "text": clean_line(f"{error}" or type(error).__name__)}


def clean_line(line: str) -> str:
    """Return a line for the report: without colours and secrets, shortened."""
    plain = "".join(letter if letter.isprintable() else " " for letter in COLOUR.sub("", line)).strip()
    if "PRIVATE KEY" in plain:
        return "(a private key was here)"
    return SECRET.sub(r"\1\2...", plain)[:LONGEST_LINE]


# Files


def read_small_file(path: Path) -> str:
    """Return the text of a small file; links and pipes are not followed, since other users than root can write some."""
    handle = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        return file.read(LONGEST_FILE).decode("utf-8", "replace")


def setting(root: Path, name: str, file: str = "etc/fedge/node.yaml") -> Optional[str]:
    """Return a plain ``name: value`` of the host's settings, or None; no YAML parser, which Python lacks."""
    try:
        found = re.search(rf"(?m)^['\"]?{name}['\"]?\s*:\s*(.+?)\s*$", read_small_file(root / file))
    except OSError:
        return None
    value = found.group(1).strip("'\"") if found else ""
    return value if value and value != "null" else None


def read_protocol(path: Path) -> int:
    """Return ``PROTOCOL`` from a package's ``__init__.py``."""
    return int(re.findall(r"(?m)^PROTOCOL\s*=\s*(\d+)", read_small_file(path))[0])


def read_version(path: Path) -> str:
    """Return ``__version__`` from a package's ``__init__.py``."""
    return str(re.findall(r"(?m)^__version__\s*=\s*[\"']([^\"']{1,40})", read_small_file(path))[0])


def installed_version(environment: Path, package: str) -> str:
    """Return the version of a package in an environment, from the name of its metadata folder.

    Raises:
        FileNotFoundError: The package is not installed.
    """
    pattern = f"lib/python3*/site-packages/{package}-*.dist-info"
    found = sorted(path.name for path in environment.glob(pattern))
    if not found:
        raise FileNotFoundError(f"no {package} in {environment}")
    return found[-1][len(package) + 1 : -len(".dist-info")]


def client(root: Path) -> Fields:
    """Return the protocol versions of the board's client, from its files without running it."""
    source = root / "usr/lib/fedge-node/client/fedge"
    return {
        "powerd_protocol": read_protocol(source / "powerd/__init__.py"),
        "worker_protocol": read_protocol(source / "worker/__init__.py"),
        "flwr": installed_version(root / "usr/lib/fedge-node/venv", "flwr"),
    }


def claim(root: Path, state: str, now_s: float) -> Optional[Fields]:
    """Return the run that has claimed the board and the seconds left; None without a valid claim."""
    try:
        found = json.loads(read_small_file(root / state.lstrip("/") / "claim.json"))
    except FileNotFoundError:
        return None
    left_s = float(found["until_s"]) - now_s
    return {"run": clean_line(str(found["run"])), "left_s": round(left_s, 1)} if left_s > 0 else None


def public_key(path: Path) -> str:
    """Return an OpenSSH public key.

    Raises:
        ValueError: The file contains something else, which is not repeated.
    """
    line = read_small_file(path).strip()
    if not re.match(r"(ecdsa|ssh)-\S+ \S+( [^\n]*)?$", line):
        raise ValueError("no public key in OpenSSH's form")
    return line


def free_mb(root: Path, folder: str) -> int:
    """Return the space available to an ordinary account in a folder, in megabytes (1e6 bytes)."""
    found = os.statvfs(root / folder.lstrip("/"))
    return found.f_bavail * found.f_frsize // 1000000


def disks(root: Path, folders: Sequence[str]) -> Fields:
    """Return the free megabytes of each existing folder."""
    there = [folder for folder in folders if (root / folder.lstrip("/")).is_dir()]
    return {folder: free_mb(root, folder) for folder in there}


# Services


def service(name: str, runs: Run) -> Fields:
    """Return one unit's state, restarts and last log lines."""
    shown = runs(
        ["systemctl", "show", f"{name}.service", "--property=LoadState,ActiveState,SubState,NRestarts"], COMMAND_S
    )
    has = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    absent = has.get("LoadState") in {"not-found", "masked"} and has.get("ActiveState") != "active"
    found: Fields = {"state": "absent" if absent else has.get("ActiveState", "unknown")}
    found["restarts"] = int(has.get("NRestarts") or 0)
    log = [] if absent else try_read(lambda: log_of(name, runs))
    found["log"] = log if isinstance(log, list) else [f"(no log: {log['text']})"]
    return found


def installed_units(root: Path, names: Sequence[str]) -> List[str]:
    """Return the services whose units are installed."""
    return [name for name in names if (root / "etc/systemd/system" / f"{name}.service").is_file()]


def log_of(name: str, runs: Run) -> List[str]:
    """Return the last lines of this boot, without colours and empty lines."""
    wanted = ["--boot", "--no-pager", "--all", "--output=cat", f"--lines={LOG_LINES}"]
    said = runs(["journalctl", "--unit", f"{name}.service", *wanted], COMMAND_S)
    return [line for line in map(clean_line, said.splitlines()) if line][-LOG_LINES:]


def services(names: Sequence[str], runs: Run) -> Fields:
    """Return the state of every unit; each may fail on its own."""
    found = {}
    for name in names:
        one = try_read(functools.partial(service, name, runs))
        found[name] = one if "error" not in one else {**one, "state": "unknown", "restarts": 0, "log": []}
    return found


# Sockets, queried with the rights of the client


def as_user(user: Optional[str], ask: Callable[[], Any], limit_s: float) -> Any:
    """Call ``ask`` in a child process as another user.

    Root would see neither a wrong group on a socket nor one that its folder hides.

    Args:
        user: Account of the child; None: the present one.
        ask: Returns a JSON value.
        limit_s: Seconds after which the child is killed.

    Raises:
        TimeoutError: The child did not answer in time.
        KeyError: There is no such account.
    """
    account = None if user is None else pwd.getpwnam(user)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(receive)
            os.write(send, json.dumps(try_read(functools.partial(_ask_as_user, account, ask))).encode()[:LONGEST_REPLY])
        finally:
            os._exit(0)
    os.close(send)
    try:
        return json.loads(_read_pipe(receive, limit_s))
    finally:
        os.close(receive)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _ask_as_user(account: Optional[pwd.struct_passwd], ask: Callable[[], Any]) -> Any:
    if account is not None:
        os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    return ask()


def _read_pipe(pipe: int, limit_s: float) -> bytes:
    said, ends_s = bytearray(), time.monotonic() + limit_s
    while True:
        ready = select.select([pipe], [], [], max(0.0, ends_s - time.monotonic()))[0]
        if not ready:
            raise TimeoutError(f"no answer within {limit_s:g} s")
        chunk = os.read(pipe, 65536)
        if not chunk:
            return bytes(said)
        said += chunk


def exchange(path: str, request: bytes, whole: Callable[[bytes], bool]) -> bytes:
    """Send one request over a Unix socket and return the reply, which ends when it is ``whole``.

    Raises:
        OSError: The socket is missing, refused or silent.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(SOCKET_S)
        try:
            link.connect(path)
        except PermissionError as error:
            raise PermissionError(f"no right to {path}, which is {owner_of(path)}") from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise type(error)(f"{path}: {error.strerror}") from error
        link.sendall(request)
        said = b""
        while not whole(said) and len(said) < LONGEST_REPLY:
            chunk = link.recv(65536)
            if not chunk:
                break
            said += chunk
        return said


def owner_of(path: str) -> str:
    """Return ``USER:GROUP 0660`` of a socket, or of the folder that hides it."""
    for place in (Path(path), Path(path).parent):
        try:
            has = place.stat()
        except OSError:
            continue
        names = [_name_or_number(lambda: pwd.getpwuid(has.st_uid).pw_name, has.st_uid)]  # noqa: B023 - called at once
        names.append(_name_or_number(lambda: grp.getgrgid(has.st_gid).gr_name, has.st_gid))  # noqa: B023 - called at once
        return f"{':'.join(names)} {has.st_mode & 0o7777:04o}{'' if str(place) == path else f' at {place}'}"
    return "hidden by a folder above it"


def _name_or_number(look: Callable[[], str], number: int) -> str:
    try:
        return look()
    except KeyError:
        return str(number)


def ask_powerd(path: str, verb: str, protocol: int) -> Fields:
    """Return the daemon's reply to a verb; on its wire, both directions are one line of JSON."""
    line = json.dumps({"v": protocol, "verb": verb}).encode("ascii") + b"\n"
    return dict(json.loads(exchange(path, line, lambda said: said.endswith(b"\n"))))


def ask_worker(path: str, verb: str, protocol: int) -> Fields:
    """Return the worker's reply to a verb; on its wire, a frame is a prefix and a JSON header.

    Raises:
        ValueError: The reply is not a worker frame.
    """
    prefix = struct.Struct("<4sIQ")
    header = json.dumps({"v": protocol, "verb": verb}).encode("ascii")

    def whole(said: bytes) -> bool:
        return len(said) >= prefix.size and len(said) >= prefix.size + prefix.unpack_from(said)[1]

    said = exchange(path, prefix.pack(b"FDGW", len(header), 0) + header, whole)
    if not whole(said) or not said.startswith(b"FDGW"):
        raise ValueError(f"what answers at {path} does not speak the worker's wire")
    return dict(json.loads(said[prefix.size : prefix.size + prefix.unpack_from(said)[1]]))


def ask_in_own_protocol(ask: Callable[[str, int], Fields], verb: str, protocol: int) -> Fields:
    """Return the reply to a verb; a peer that reports another protocol version is asked again with that version."""
    reply = ask(verb, protocol)
    refused = reply.get("error")
    told = re.search(r"speaks \"v\":(\d+)|protocol (\d+) is spoken", str((refused or {}).get("text")))
    if refused and told:
        reply = ask(verb, int(told.group(1) or told.group(2)))
    if reply.get("ok") is not True:
        error = reply.get("error") or {}
        return {
            "error": str(error.get("kind", "failed")),
            "text": clean_line(str(error.get("text", "no reason given"))),
        }
    return reply


def powerd(path: str, protocol: int) -> Fields:
    """Return the daemon's version and the current mode."""
    ask = functools.partial(ask_powerd, path)
    about = ask_in_own_protocol(ask, "describe", protocol)
    if "error" in about:
        return about
    now = ask_in_own_protocol(ask, "get", int(about["protocol"]))
    lease, preset = now.get("lease") or {}, now.get("preset") or {}
    found = {name: about.get(name) for name in ("protocol", "version")}
    found.update({name: now.get(name) for name in ("mode", "temperature_c", "changed", "stopped", "error", "text")})
    found.update(preset=preset.get("name"), holder=lease.get("name"), holder_left_s=lease.get("left_s"))
    return {name: value for name, value in found.items() if name not in {"error", "text"} or value is not None}


def worker(path: str, protocol: int) -> Fields:
    """Return the worker's versions and state."""
    about = ask_in_own_protocol(functools.partial(ask_worker, path), "status", protocol)
    wanted = ("protocol", "version", "python", "torch", "device", "state", "restarts", "refused", "error", "text")
    return {name: about[name] for name in wanted if name in about}


# Connection to the SuperLink


def superlink_address(root: Path) -> Optional[str]:
    """Return the ``host:port`` that the SuperNode connects to; None without its unit."""
    try:
        unit = read_small_file(root / "etc/systemd/system/fedge-supernode.service")
    except FileNotFoundError:
        return None
    found = re.search(r"--superlink[ =](\S+)", unit)
    return found.group(1) if found else None


def reach(address: str) -> Fields:
    """Check that the address accepts connections; the SuperNode itself retries forever without giving a reason."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S):
        return {"ok": True}


# The server


def environment(root: Path) -> Path:
    """Return the environment from which the SuperLink's unit runs."""
    unit = read_small_file(root / "etc/systemd/system/fedge-superlink.service")
    program = re.findall(r"(?m)^ExecStart=(\S+)/bin/flower-superlink", unit)
    if not program:
        raise ValueError("fedge-superlink.service names no program")
    return Path(program[0])


def flower(root: Path, runs: Run, *command: str) -> Fields:
    """Run a program of the SuperLink's environment as its permitted user, and return its JSON output."""
    said = runs([str(root / FLOWER), *command], FLOWER_S)
    return dict(json.loads(said[said.index("{") :]))


def nodes(root: Path, runs: Run) -> List[Fields]:
    """Return the registered nodes with name and key."""
    return list(flower(root, runs, "python", str(root / NODES), "list")["nodes"])


def list_unfinished_runs(root: Path, runs: Run) -> List[Fields]:
    """Return the runs that have not finished."""
    listed = flower(root, runs, "flwr", "list", "fleet", "--format", "json")["runs"]
    alive = [one for one in listed if not str(one.get("status")).startswith("finished")]
    return [{"run_id": str(one.get("run-id")), "status": str(one.get("status"))} for one in alive]


def certificate_end_s(path: str, runs: Run) -> int:
    """Return the end of a certificate's validity, unix time."""
    said = runs(["openssl", "x509", "-noout", "-enddate", "-in", path], COMMAND_S).strip()
    text = said.partition("=")[2]
    return int(datetime.strptime(text.replace(" GMT", " +0000"), "%b %d %H:%M:%S %Y %z").timestamp())


def sample_ages_s(root: Path) -> Fields:
    """Return the seconds since each board's last sample, from the board service; boards without samples are missing."""
    link = http.client.HTTPConnection("127.0.0.1", int(setting(root, "port", BOARD_PAGE) or 0), timeout=REACH_S)
    try:
        link.request("GET", "/metrics")
        answer = link.getresponse()
        said = answer.read(LONGEST_PAGE).decode("utf-8", "replace")
    finally:
        link.close()
    if answer.status != 200:
        raise OSError(f"the board service answers {answer.status}")
    found = re.findall(r'(?m)^fedge_board_sample_age_seconds\{board="([A-Za-z0-9._-]+)",[^\n]*\} ([0-9.e+-]+)$', said)
    return {board: round(float(age), 1) for board, age in found}


# Complete reports


def board(root: Path, runs: Run, user: Optional[str], now_s: Callable[[], float]) -> Fields:
    """Return a board's facts; ``root`` stands for /.

    ``user`` is the account that queries the sockets, None the present one. ``now_s`` returns unix time.
    """
    speaks = try_read(lambda: client(root))
    address = try_read(lambda: superlink_address(root))
    sockets = (setting(root, "power_socket") or POWERD_SOCKET, setting(root, "worker_socket") or WORKER_SOCKET)
    asks = (
        lambda: powerd(sockets[0], speaks.get("powerd_protocol", 1)),
        lambda: worker(sockets[1], speaks.get("worker_protocol", 1)),
    )
    state, extras = setting(root, "state_dir") or STATE, installed_units(root, BOARD_EXTRAS)
    return {
        "kind": "board",
        "at_s": now_s(),
        "board": setting(root, "board"),
        "fedge": try_read_or_none(lambda: read_version(root / "usr/lib/fedge-node/client/fedge/__init__.py")),
        "python": platform.python_version(),
        "model": try_read_or_none(
            lambda: clean_line(read_small_file(root / "proc/device-tree/model").replace("\0", ""))
        ),
        "client": speaks,
        "services": services([*BOARD_SERVICES, *extras], runs),
        "superlink": address,
        "way": try_read(lambda: as_user(None, lambda: reach(address), 2 * REACH_S))
        if isinstance(address, str)
        else None,
        "public_key": try_read_or_none(lambda: public_key(root / "etc/fedge/keys/node.pub")),
        "powerd": try_read(lambda: as_user(user, asks[0], 2 * SOCKET_S)),
        "worker": try_read(lambda: as_user(user, asks[1], 2 * SOCKET_S)),
        "disk_free_mb": try_read(lambda: disks(root, ("/", "/var/lib/fedge"))),
        "claim": try_read(lambda: claim(root, state, now_s())),
        "certificate": try_read(lambda: certificate_end_s(str(root / "etc/fedge/tell/board.crt"), runs))
        if extras
        else None,
    }


def server(root: Path, runs: Run, now_s: Callable[[], float]) -> Fields:
    """Return the server's facts; arguments as for ``board``."""
    tls, extras = root / "etc/fedge/tls", installed_units(root, SERVER_EXTRAS)
    return {
        "kind": "server",
        "at_s": now_s(),
        "fedge": try_read_or_none(lambda: installed_version(environment(root), "fedge")),
        "flwr": try_read_or_none(lambda: installed_version(environment(root), "flwr")),
        "services": services([*SERVER_SERVICES, *extras], runs),
        "nodes": try_read(lambda: nodes(root, runs)),
        "runs": try_read(lambda: list_unfinished_runs(root, runs)),
        "ages_s": try_read(lambda: sample_ages_s(root)) if extras else None,
        "disk_free_mb": try_read(lambda: disks(root, ("/", "/var/lib/fedge-link"))),
        "certificates": {
            name: try_read(functools.partial(certificate_end_s, str(tls / name), runs))
            for name in ("server.crt", "ca.crt")
        },
    }


def try_read_or_none(read: Callable[[], Any]) -> Any:
    """Return the result of ``read``, or None if it raises."""
    found = try_read(read)
    return None if isinstance(found, Mapping) and "error" in found else found


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Print the facts of this host as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["board", "server"])
    parser.add_argument("--asked-at-s", type=float, help="the control node's time, handed back")
    parser.add_argument("--root", type=Path, default=Path("/"))
    parser.add_argument("--user", default=APP_USER, help="with whose eyes sockets are asked; '' for this user's")
    asked = parser.parse_args(argv)
    if asked.kind == "server":
        found = server(asked.root, run, time.time)
    else:
        found = board(asked.root, run, asked.user or None, time.time)
    # at_s and done_at_s enclose the probe on the host's clock, however long it took.
    found["done_at_s"] = time.time()
    found["asked_at_s"] = asked.asked_at_s
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
