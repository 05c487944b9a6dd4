"""What ``fedge fleet status`` says of a test fleet, read from its JSON, and what the server's page shows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.hosts import INSTALLED, Hosts

SAY_LIMIT_S = 120.0
PAGE = "http://127.0.0.1:8400"
PYTHON = f"{INSTALLED}/.venv/bin/python"
ASK = f"{PYTHON} -c 'import urllib.request as u; print(u.urlopen(\"{PAGE}/%s\", timeout=5).read().decode())'"


def findings_of(fleet: Hosts, folder: Path) -> dict[str, str]:
    """What is wrong with each board, in one text; "" where nothing is."""
    file = folder / "status.json"
    file.unlink(missing_ok=True)
    done = fleet.fedge("status", "--out", str(file))
    if not file.exists():
        raise RuntimeError(f"no status: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    boards = json.loads(file.read_text(encoding="utf-8"))["boards"]
    return {board["name"]: "; ".join(each["what"] for each in board["findings"] if _wrong(each)) for board in boards}


def _wrong(finding: Mapping[str, str]) -> bool:
    """Whether it keeps the board from its work; that a service was started anew some times does not."""
    return finding["severity"] == "fault"


def until_told(fleet: Hosts, folder: Path, words: Mapping[str, str], limit_s: float = SAY_LIMIT_S) -> dict[str, str]:
    """The findings once every board of ``words`` is told of in these, or as they are when the time is up."""
    end_s = time.monotonic() + limit_s
    while True:
        told = findings_of(fleet, folder)
        if all(said in told[board] for board, said in words.items()) or time.monotonic() > end_s:
            return told
        time.sleep(2.0)


def view(hosts: Hosts) -> dict[str, Any]:
    """What the page of the server shows; nothing while it does not answer."""
    said = hosts.server.ssh(ASK % "api/view")
    return dict(json.loads(said.stdout)) if said.returncode == 0 else {}
