"""Packages of the distribution for test hosts without network: fetched once, an archive of apt's on the host."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fleet.base import CannotHave, base_root, cache, only_one
from fleet.hosts import Host

ARCHIVE, SOURCE = "srv/packages", "etc/apt/sources.list.d/packages.list"
FETCH_LIMIT_S = 300.0


def fetched(names: Sequence[str]) -> Path:
    """A folder of the packages and all that they need beside the hosts' root; raises ``CannotHave`` without network."""
    base = base_root()
    told = hashlib.sha256(" ".join([base.name, *sorted(names)]).encode()).hexdigest()[:12]
    folder = cache() / f"packages-{told}"
    with only_one(cache() / "packages.lock"):
        if not folder.exists():
            unfinished = folder.with_name(folder.name + ".part")
            shutil.rmtree(unfinished, ignore_errors=True)
            (unfinished / "partial").mkdir(parents=True)
            _fetch(names, base, unfinished)
            (unfinished / "partial").rmdir()
            (unfinished / "Packages").write_text("\n".join(map(_entry, sorted(unfinished.glob("*.deb")))))
            unfinished.rename(folder)
    return folder


def offer(host: Host, folder: Path) -> None:
    """Let apt on the host install what is in the folder, as from a mirror, and nothing else."""
    shutil.copytree(folder, host.root / ARCHIVE, ignore=shutil.ignore_patterns("lock"), dirs_exist_ok=True)
    host.run(
        f"set -e; echo 'deb [trusted=yes] file:/{ARCHIVE} ./' > /{SOURCE}; chmod -R a+rX /{ARCHIVE};"
        " mv /etc/apt/sources.list /etc/apt/sources.list.off"
    )


def offer_no_more(host: Host) -> None:
    """The host's own sources again."""
    host.run(
        f"rm -rf /{ARCHIVE} /{SOURCE}; mv /etc/apt/sources.list.off /etc/apt/sources.list; rm -rf /var/lib/apt/lists/*"
    )


def _fetch(names: Sequence[str], base: Path, folder: Path) -> None:
    options = {
        "Dir::State::status": base / "var/lib/dpkg/status",
        "Dir::Cache::archives": folder,
        "Debug::NoLocking": "1",
    }
    words = ["apt-get", "-q", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    words += ["install", "-y", "--no-install-recommends", "--download-only", *names]
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=FETCH_LIMIT_S, env={**os.environ, "LC_ALL": "C"}
        )
        if done.returncode == 0:
            return
        raise CannotHave(f"{', '.join(names)}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    raise CannotHave(f"{', '.join(names)}: not fetched within {FETCH_LIMIT_S:.0f} s")


def _entry(deb: Path) -> str:
    """The package in apt's index."""
    said = subprocess.run(["dpkg-deb", "-f", str(deb)], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(deb.read_bytes()).hexdigest()
    return f"{said.rstrip()}\nFilename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n"
