"""Let faults befall real processes at random instants, and print tried, held and failed per process and fault.

python tests/faults/run_faults.py [--points N | --minutes M] [--first N] [--faults FAULT,...] [SUBJECT ...]
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from faults.fault_points import FaultOutcome, FaultSubject, try_point  # noqa: E402
from faults.subjects import SUBJECTS  # noqa: E402


def main() -> int:
    """Return 1 if something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", help=f"of {', '.join(SUBJECTS)}; by default all")
    parser.add_argument("--points", type=int, default=20, help="points per subject")
    parser.add_argument("--minutes", type=float, help="at most so many per subject")
    parser.add_argument("--first", type=int, default=0, help="number of the first point")
    parser.add_argument("--faults", help="only these, with commas between")
    given = parser.parse_args()
    if unknown := sorted(set(given.subjects) - set(SUBJECTS)):
        parser.error(f"no subject {unknown[0]}; known: {', '.join(SUBJECTS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    counted: Counter[tuple[str, str, str]] = Counter()
    try:
        for name in given.subjects or SUBJECTS:
            attack_subject(name, SUBJECTS[name], given, counted)
    except KeyboardInterrupt:
        print("interrupted")
    print_table(counted)
    return int(any(count and what == "failed" for (_, _, what), count in counted.items()))


def attack_subject(
    name: str, subject: FaultSubject, given: argparse.Namespace, counted: Counter[tuple[str, str, str]]
) -> None:
    """Try the points of a subject, and count them."""
    faults = [fault for fault in subject.faults if given.faults is None or fault in given.faults.split(",")]
    ends_s = time.monotonic() + 60.0 * (given.minutes or 1e6)
    with tempfile.TemporaryDirectory(prefix="fedge-faults-") as folder, subject.open(Path(folder)) as attack:
        for number, fault in zip(range(given.first, given.first + given.points), itertools.cycle(faults), strict=False):
            if time.monotonic() >= ends_s:
                return
            outcome = try_point(attack, fault, number)
            counted[name, fault, classify(outcome)] += 1
            if outcome.failure:
                print(f"{name} {number} ({fault}): {outcome.failure}", flush=True)


def classify(outcome: FaultOutcome) -> str:
    if outcome.failure:
        return "failed"
    return "held" if outcome.hit else "too late"


def print_table(counted: Counter[tuple[str, str, str]]) -> None:
    """Print a line per process and fault; what came after the end of the process is held, but not tried."""
    print(f"\n{'process':16} {'fault':16} {'tried':>7} {'held':>7} {'failed':>7} {'too late':>9}")
    total: Counter[str] = Counter()
    for name, fault in dict.fromkeys((name, fault) for name, fault, _ in counted):
        held, failed, late = (counted[name, fault, what] for what in ("held", "failed", "too late"))
        print(f"{name:16} {fault:16} {held + failed:7} {held:7} {failed:7} {late:9}")
        total.update({"held": held, "failed": failed, "too late": late})
    held, failed, late = total["held"], total["failed"], total["too late"]
    print(f"{'all':16} {'':16} {held + failed:7} {held:7} {failed:7} {late:9}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
