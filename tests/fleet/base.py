"""The root folder that every test host starts from: made once by debootstrap, kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "python3",
    "iproute2",
    "sudo",
    "nginx-light",
    "nftables",
    "ca-certificates",
    "libfaketime",
    "procps",
    "tzdata",
)
PROGRAMS = {
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "ping": "iputils-ping",
    "ssh": "openssh-client",
}
"""What this machine needs, and the packages that bring it."""
VERSION = "2"
"""Counted up when what is done after debootstrap changes."""
MODERN = (3, 11)
LIMIT_S = 900.0
INSTALL_LIMIT_S = 300.0


class CannotHave(Exception):
    """Why there can be no test hosts on this machine."""


def cache() -> Path:
    """The user's folder for what is made once."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "fedge" / "test-fleet"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(what: str) -> None:
    """Tell who waits what takes so long."""
    print(f"{what} ...", file=sys.stderr, flush=True)


def ready_machine() -> None:
    """Install what is missing here; raises ``CannotHave`` where that is impossible."""
    if os.geteuid() != 0:
        raise CannotHave("test hosts need root")
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program, path=_path())})
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise CannotHave(f"{', '.join(missing)}: missing, and there is no apt-get")
    say(f"installing {', '.join(missing)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *missing]):
        done = _run(["apt-get", *command], INSTALL_LIMIT_S, env)
    if done.returncode != 0:
        raise CannotHave(f"{', '.join(missing)} cannot be installed: {_last(done.stderr)}")


def base_root() -> Path:
    """The folder, made now if it is not there; raises ``CannotHave`` where no mirror answers."""
    suite, mirror = _suite(), _mirror()
    told = hashlib.sha256(" ".join([VERSION, suite, *sorted(PACKAGES)]).encode()).hexdigest()[:12]
    root = cache() / f"base-{suite}-{told}"
    with only_one(cache() / "base.lock"):
        if root.exists():
            return _with_modern_python(root)
        say(f"making the disk that every host starts from, {suite} from {mirror} (minutes, once)")
        unfinished = root.with_name(root.name + ".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", "--components=main,universe" if _ubuntu() else ""]
        command += [f"--include={','.join(PACKAGES)}", suite, str(unfinished), mirror]
        done = _run([word for word in command if word], LIMIT_S, {**os.environ, "PATH": _path()})
        if done.returncode != 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise CannotHave(f"debootstrap of {suite} from {mirror}: {_last(done.stdout + done.stderr)}")
        _finish(unfinished)
        return _with_modern_python(unfinished.rename(root))


def _with_modern_python(root: Path) -> Path:
    """The hosts' own Python is the modern one that boards have already: they have no network to fetch another."""
    name = (root / "usr/bin/python3").readlink().name
    if tuple(map(int, name.removeprefix("python").split("."))) < MODERN:
        raise CannotHave(f"this machine's release comes with {name}; test hosts need 3.11 or newer")
    return root


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """One process at a time; freed by the kernel however a process ends."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _finish(root: Path) -> None:
    """What must be every host's own goes, and what would only take time at the start."""
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (root / "etc/machine-id").write_text("")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    units = root / "etc/systemd/system"
    for unit in ("nginx.service", "apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer"):
        for link in units.glob(f"*.wants/{unit}"):
            link.unlink()
    for unit in ("console-getty.service", "getty@.service", "systemd-modprobe@.service", "modprobe@.service"):
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")


def _suite() -> str:
    """This machine's own release: Pythons built here find their C library there."""
    told = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if "VERSION_CODENAME" not in told or told.get("ID") not in {"debian", "ubuntu"}:
        raise CannotHave(f"test hosts are made of Debian or Ubuntu; this is {told.get('PRETTY_NAME', 'neither')}")
    return told["VERSION_CODENAME"]


def _ubuntu() -> bool:
    return "ID=ubuntu" in Path("/etc/os-release").read_text().splitlines()


def _mirror() -> str:
    """The first address that apt knows for this release."""
    folder, suite = Path("/etc/apt"), _suite()
    for file in filter(Path.exists, [folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))]):
        text = file.read_text()
        found = re.search(rf"^deb\s+(?:\[.*\]\s+)?(\S+)\s+{suite}\s", text, re.MULTILINE)
        if not found and re.search(rf"^Suites:.*\b{suite}\b", text, re.MULTILINE):
            found = re.search(r"^URIs:\s*(\S+)", text, re.MULTILINE)
        if found:
            return found[1]
    raise CannotHave(f"apt knows no address for {suite}: name one in /etc/apt/sources.list")


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no word"])[-1]


def _run(command: Sequence[str], limit_s: float, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s, env=env)
    except subprocess.TimeoutExpired as error:
        raise CannotHave(f"{command[0]} did not end within {limit_s:.0f} s") from error
