"""A program that runs a sweep of a fake rig: at once, or, with ``--fork``, in a new process for every line it reads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow.parquet  # noqa: F401 -- before the forks, so that each of them starts at once
from characterised.fake import FakeRig, fake_plan

from fedge.characterisation.sweep_run import SweepRun
from fedge.characterisation.sweep_store import open_journal


def sweep(out: Path, log: Path) -> None:
    """Measure what is left."""
    plan, rig = fake_plan(workers=(0, 1, 2, 4), batches=(4, 8, 16)), FakeRig(log, seconds=0.01)
    with open_journal(out) as journal:
        journal.begin(plan, {"fake-1": rig.software})
        campaign = SweepRun(plan, {"fake-1": rig}, journal)
        while campaign.next_point() is not None:
            campaign.run_next()


def main() -> None:
    """``running.py OUT LOG [--fork]``: with it, every line read starts a sweep whose process id is printed."""
    out, log = Path(sys.argv[1]), Path(sys.argv[2])
    if "--fork" not in sys.argv:
        sweep(out, log)
        return
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                sweep(out, log)
            except BaseException:  # noqa: BLE001 -- its exit code tells
                os._exit(1)
            os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
