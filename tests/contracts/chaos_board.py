"""A board for ``chaos.sh``: real processes in place of services, and stand-ins for systemd's programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "ansible" / "chaos.sh"
SYSTEMCTL = """#!/bin/sh
units=$CHAOS_ROOT/units
case $1 in
kill) signal=${2#--signal=}; shift 2; for unit; do kill -s "$signal" "$(cat "$units/$unit")" || exit 1; done ;;
start)
    shift
    for unit; do
        case $unit in
        fedge-chaos.service)
            [ -f "$units/undo" ] || exit 5
            if sh "$units/undo"; then rm "$units/undo"; else touch "$units/failed"; exit 1; fi
            ;;
        *) echo "$unit" >> "$CHAOS_ROOT/started" ;;
        esac
    done ;;
stop) [ ! -f "$units/timer" ] || { kill "$(cat "$units/timer")"; rm "$units/timer"; } ;;
is-active) [ -f "$units/timer" ] ;;
is-failed) [ -f "$units/failed" ] ;;
esac
"""
SYSTEMD_RUN = """#!/bin/sh
for word; do
    case $word in --on-active=*) after=${word#*=} ;; --*) ;; *) break ;; esac
    shift
done
shift $(( $# - 4 ))
echo "$1 $2 $3 $4" > "$CHAOS_ROOT/units/undo"
(sleep "$after"; rm "$CHAOS_ROOT/units/timer"; systemctl start fedge-chaos.service) > /dev/null 2>&1 &
echo $! > "$CHAOS_ROOT/units/timer"
"""
IP = """#!/bin/sh
echo "$*" >> "$CHAOS_ROOT/routes"
"""


class ChaosBoard:
    """A root folder with a process for each of the services."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.services: dict[str, subprocess.Popen[bytes]] = {}
        for folder in ("bin", "units", "run", "etc/systemd/system"):
            (root / folder).mkdir(parents=True)
        for name, text in {"systemctl": SYSTEMCTL, "systemd-run": SYSTEMD_RUN, "ip": IP}.items():
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)
        for name in ("worker", "powerd", "supernode", "ready", "superexec"):
            self.services[name] = subprocess.Popen(["sleep", "300"])
            (root / "units" / f"fedge-{name}").write_text(str(self.services[name].pid))

    @property
    def environment(self) -> dict[str, str]:
        """What the script is to find in its environment."""
        return {"CHAOS_ROOT": str(self.root), "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The script with these arguments."""
        env = {**os.environ, **self.environment}
        return subprocess.run(["sh", SCRIPT, *words], env=env, capture_output=True, text=True, check=False)

    def state(self, service: str) -> str:
        """The state of a service's process, as the kernel names it."""
        return Path(f"/proc/{self.services[service].pid}/stat").read_text().rpartition(")")[2].split()[0]

    def read(self, name: str) -> list[str]:
        """The lines of a file of the board's; none if there is no such file."""
        path = self.root / name
        return path.read_text().splitlines() if path.exists() else []

    def end(self) -> None:
        """End its processes."""
        for process in self.services.values():
            process.kill()
            process.wait()
