"""Runs fedge-powerd below a recorded root whose kernel answers, dies or misbehaves as it is told.

``python tests/contracts/jetsons/daemon.py --root ROOT [--die-at-write K] [--fault KIND:PATH[:VALUE[:AFTER[:TIMES]]]]``
takes the daemon's own arguments beside these; ``KIND`` and the rest are the fields of ``kernel.Fault``. ``--nvpmodel``
takes ``container``, ``fails`` or ``half`` for an nvpmodel that does so; ``--tick-s`` how often it looks at the board.
"""

import argparse
import functools
import sys
from pathlib import Path
from typing import List, Optional

TESTS = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:1] = [str(TESTS.parent), str(TESTS)]

from contracts.jetsons.kernel import Fault, KernelMachine  # noqa: E402 (the path comes first)
from contracts.jetsons.nvpmodel import SWITCH  # noqa: E402


def fault(text: str) -> Fault:
    """A fault from its text, fields parted by colons; ``%3A`` stands for a colon in a path."""
    kind, path, *more = text.split(":")
    value = more[0] if more else ""
    after, times = [int(word) for word in [*more[1:3], "0", "0"][:2]]
    return Fault(kind, path.replace("%3A", ":"), value, after, times)


def main(argv: Optional[List[str]] = None) -> int:
    """The daemon's exit code."""
    from fedge.powerd import daemon, line_server

    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--die-at-write", type=int)
    parser.add_argument("--fault", action="append", type=fault, default=[])
    parser.add_argument("--nvpmodel", choices=["container", "fails", "half"])
    parser.add_argument("--tick-s", type=float)
    asked, rest = parser.parse_known_args(argv)
    if asked.tick_s is not None:
        limits = line_server.DEFAULT_LIMITS._replace(tick_s=asked.tick_s)
        daemon.LineServer = functools.partial(line_server.LineServer, limits=limits)
    machine = KernelMachine(asked.root, asked.die_at_write)
    if asked.fault:
        machine.plant(*asked.fault)
    if asked.nvpmodel:
        machine.path(SWITCH).write_text(asked.nvpmodel)
    return daemon.main(["--root", asked.root, *rest], lambda root: machine)


if __name__ == "__main__":
    sys.exit(main())
