"""Feed targets with hostile inputs for a number of inputs or hours, and print tried and failed per target.

python tests/fuzz/run_targets.py [--inputs N | --hours H] [--first N] [--keep FOLDER] [TARGET ...]
"""

import argparse
import itertools
import math
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from fuzz.fuzzing import FuzzOutcome, fuzz_target  # noqa: E402
from fuzz.targets import TARGETS  # noqa: E402

BLOCK = 5_000
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
    outcomes = {name: FuzzOutcome(0, ()) for name in names}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _fuzz_in_turns(given, outcomes)
    except KeyboardInterrupt:
        print("interrupted")
    print(f"\n{'target':24} {'tried':>9} {'failed':>7}")
    for name, outcome in outcomes.items():
        print(f"{name:24} {outcome.tried:9} {len(outcome.failures):7}")
    failed = sum(len(outcome.failures) for outcome in outcomes.values())
    print(f"{'all':24} {sum(outcome.tried for outcome in outcomes.values()):9} {failed:7}")
    return int(failed > 0)


def _fuzz_in_turns(given: argparse.Namespace, outcomes: dict[str, FuzzOutcome]) -> None:
    """Feed every target with one block after the other; ``outcomes`` is kept up to date."""
    ends_s = time.monotonic() + (given.hours * 3600 if given.hours is not None else math.inf)
    last = given.first + given.inputs if given.hours is None else sys.maxsize
    for first in itertools.count(given.first, BLOCK):
        for name, before in outcomes.items():
            if first >= last or time.monotonic() >= ends_s:
                return
            found = fuzz_target(name, first, min(BLOCK, last - first))
            outcomes[name] = FuzzOutcome(before.tried + found.tried, before.failures + found.failures)
            for failure in found.failures:
                print(f"{name} {failure.number}: {failure.reason}", flush=True)
                if given.keep is not None:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    (given.keep / f"{name}-{failure.number}").write_bytes(failure.data)


if __name__ == "__main__":
    sys.exit(main())
