"""Where the processor time of emulated rounds goes: parts of a client-round by cProfile, together and alone.

    OMP_NUM_THREADS=1 python benchmarks/local_profile.py [--clients 40] [--rounds 4]

Runs `local` in this process (`balanced`, digits CNN, one minibatch per round): once as it is, with clients that predict
together, and once with each client alone, as in the processes of `sim`. The first column is the processor time of the
whole run without the profiler, per client and round; the parts are shares of a second, profiled run, scaled to it.
"""

from __future__ import annotations

import cProfile
import logging
import pstats
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from figures import FOUR_KINDS, build_parser, build_table
from rich.console import Console

from experiments.backends.local_backend import run_local
from fedge.client import emulated
from fedge.experiment import DataSpec, Experiment, FleetEntry, WorkloadSpec

PARTS = {
    "fits": ("fit_predictors",),
    "predictions": ("_predict_modes",),
    "decisions": ("observe_round", "_choose_probe_mode", "choose_trial"),
    "training": ("result",),
    "building": ("_cached_client",),
    "merging": ("merge_replies",),
}
"""Functions whose time, with all that they call, makes up a part."""


def main() -> None:
    """Profile both ways and print the table."""
    options = build_parser(__doc__, clients=40, rounds=4).parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    fleet = tuple(FleetEntry(device=kind, count=max(1, options.clients // len(FOUR_KINDS))) for kind in FOUR_KINDS)
    experiment = Experiment(
        backend="local",
        rounds=options.rounds,
        fleet=fleet,
        workload=WorkloadSpec(local_epochs=1.0),
        data=DataSpec(partition="iid"),
        jobs=1,
    )
    measure(experiment.model_copy(update={"rounds": 1, "seed": 0}))  # imports what a run needs
    client_rounds = options.rounds * sum(entry.count for entry in fleet)
    table = build_table("ms of processor time per client-round", *("clients", "all", *PARTS, "other"))
    for name, together in (("together", emulated.MAX_CLIENTS_TOGETHER), ("alone", 1)):
        emulated.MAX_CLIENTS_TOGETHER = together
        total_ms = 1e3 * measure(experiment.model_copy(update={"seed": together})) / client_rounds
        profile = cProfile.Profile(time.process_time)  # another seed, so that the boards are built again
        profiled_s = measure(experiment.model_copy(update={"seed": together + 1}), profile.runcall)
        shares = [share / profiled_s for share in sum_parts(profile)]
        columns = (total_ms, *(total_ms * share for share in shares), total_ms * (1.0 - sum(shares)))
        table.add_row(name, *(f"{value:.1f}" for value in columns))
    Console().print(table)


def measure(experiment: Experiment, call: Callable[..., object] = lambda work, *given: work(*given)) -> float:
    """Return the seconds of processor time of one run."""
    with tempfile.TemporaryDirectory() as folder:
        begun_s = time.process_time()
        call(run_local, experiment, Path(folder), lambda: None)
        return time.process_time() - begun_s


def sum_parts(profile: cProfile.Profile) -> list[float]:
    """Return the seconds of each part."""
    times = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    seconds: dict[str, float] = {}
    for (path, _, function), (_, _, _, with_callees_s, _) in times.items():
        if function != "result" or path.endswith("client/emulated.py"):
            seconds[function] = seconds.get(function, 0.0) + with_callees_s
    return [sum(seconds.get(function, 0.0) for function in functions) for functions in PARTS.values()]


if __name__ == "__main__":
    main()
