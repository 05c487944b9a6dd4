"""Feed targets with hostile inputs for a number of inputs or hours, and print tried and failed per target.

python tests/fuzz/run_targets.py [--inputs N | --hours H] [--first N] [--keep FOLDER] [TARGET ...]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from fuzz.fuzzing import FuzzFailure, fuzz_target  # noqa: E402
from fuzz.targets import TARGETS  # noqa: E402

BLOCK = 500
"""Inputs of a target before the next one's turn."""


def main() -> int:
    """Return 1 if an input failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; by default all")
    parser.add_argument("--inputs", type=int, default=1_000, help="inputs per target")
    parser.add_argument("--hours", type=float, help="go on for so many hours instead")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first input; the same number, the same input"
    )
    parser.add_argument("--keep", type=Path, help="folder for the inputs that failed")
    given = parser.parse_args()
    names = given.targets or list(TARGETS)
    if unknown := sorted(set(names) - set(TARGETS)):
        parser.error(f"no target {unknown[0]}; known: {', '.join(TARGETS)}")
    ends_s = time.monotonic() + (given.hours * 3600 if given.hours is not None else 1e12)
    tried, failures = dict.fromkeys(names, 0), dict[str, list[FuzzFailure]]((name, []) for name in names)
    first, last = given.first, given.first + given.inputs if given.hours is None else sys.maxsize
    while first < last and time.monotonic() < ends_s:
        count = min(BLOCK, last - first)
        for name in names:
            if time.monotonic() >= ends_s:
                break
            outcome = fuzz_target(name, first, count)
            tried[name] += outcome.tried
            failures[name] += outcome.failures
            for failure in outcome.failures:
                print(f"{name} {failure.number}: {failure.reason}", flush=True)
                if given.keep is not None:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    (given.keep / f"{name}-{failure.number}").write_bytes(failure.data)
        first += count
    print(f"\n{'target':24} {'tried':>9} {'failed':>7}")
    for name in names:
        print(f"{name:24} {tried[name]:9} {len(failures[name]):7}")
    print(f"{'all':24} {sum(tried.values()):9} {sum(map(len, failures.values())):7}")
    return int(any(failures.values()))


if __name__ == "__main__":
    sys.exit(main())
