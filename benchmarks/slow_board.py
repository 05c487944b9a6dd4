"""Time from message to mode choice on a board as slow as a Nano: the client with a quota of a tenth of a core.

    python benchmarks/slow_board.py [SHARE]

A separate process loads the Flower client, reads one request with the samples of earlier rounds, fits the default
predictor, predicts all candidate modes, chooses one and builds its front. Another process lets it run for SHARE (0.1)
of every tenth of a second. Flower starts the client afresh for every message, so both figures count: with the loading
of libraries, and without. Training and the emulation of the board are not included.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

PERIOD_S = 0.1
SAMPLES = 50

CLIENT = """
import json, resource, sys, time
began = time.monotonic()
from clients import app as client_app
from fedge.modes import build_grid
from fedge.client.evidence import build_front, fit_and_predict
from fedge.client.prediction_requests import run_alone
from fedge.client.round_state import RoundContext
from fedge.costs.cost_priors import build_priors
from fedge.decisions.candidate_modes import mask_candidates
from fedge.decisions.measured_correction import correct_with_measurements
from fedge.devices.catalogue import load_catalogue
from fedge.experiment import Experiment
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.decisions.policies import find_lowest_mode, load_policy
from fedge.predictors import load_predictor
from fedge.types import LinkUse, Modes, RoundGoal, Workload
from fedge.wire import RequestMessage, from_json, to_json
loaded = time.monotonic()

class Board:
    spec = load_catalogue()["agx-orin-64gb"]
    def idle_w(self, mode):
        return self.spec.idle_w.value

ask = from_json(RequestMessage, sys.stdin.readline())
experiment = Experiment.model_validate_json(sys.argv[1])
board, specs = Board(), load_catalogue()
priors = build_priors(board.spec, experiment.workload.cost, specs, layered=False)
knowledge = PriorKnowledge(board.spec.maxn, tuple(p.coefficients for p in priors), idle_w=board.idle_w(None))
every = build_grid(board.spec)
candidates = Modes(every.knobs[mask_candidates(every)])
policy = load_policy(ask.policy)
player = RoundContext(
    "board", board, load_predictor(experiment.predictor, knowledge), policy,
    Workload(experiment.workload.cost, experiment.workload.batch_size), candidates, board.spec.maxn,
    find_lowest_mode(candidates), experiment.exploration,
)
own = ask.state.measurements
predictions = correct_with_measurements(run_alone(fit_and_predict(player, own, ())), own)
front = build_front(player, predictions, own, 60, LinkUse(0.1, 0.1, 0.1))
decision = policy(predictions, front, RoundGoal(ask.policy, 60.0), board.spec)
answer = to_json(front)
done = time.monotonic()
print(json.dumps({
    "load_s": round(loaded - began, 2), "decide_s": round(done - loaded, 2), "cpu_s": round(time.process_time(), 2),
    "candidates": len(candidates), "mode": str(decision.mode),
    "rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
}))
"""


def main() -> None:
    """Print seconds and memory of one decision under the quota."""
    share = float(sys.argv[1]) if len(sys.argv) > 1 else 0.1
    experiment, ask = _build_question()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, experiment], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(ask + "\n")
    process.stdin.flush()
    _limit_cpu_share(process, share)
    out, _ = process.communicate()
    if process.returncode:
        sys.exit(f"the client ended with {process.returncode}")
    print(f"at {share:.0%} of a core, {SAMPLES} samples: {out.strip()}")


def _limit_cpu_share(process: subprocess.Popen[str], share: float) -> None:
    """Let the process run for ``share`` of each period until it ends."""
    while process.poll() is None:
        process.send_signal(signal.SIGCONT)
        time.sleep(share * PERIOD_S)
        if process.poll() is None and share < 1.0:
            process.send_signal(signal.SIGSTOP)
            time.sleep((1.0 - share) * PERIOD_S)


def _build_question() -> tuple[str, str]:
    """Return an experiment with one AGX Orin, and a request with the board's measurements of earlier rounds."""
    import numpy as np

    from fedge.devices.catalogue import load_catalogue
    from fedge.experiment import Experiment, FleetEntry
    from fedge.modes import build_grid
    from fedge.types import Measurement
    from fedge.wire import ClientState, RequestMessage, to_json

    experiment = Experiment(fleet=(FleetEntry(device="agx-orin-64gb"),))
    modes = build_grid(load_catalogue()["agx-orin-64gb"])
    rng = np.random.default_rng(0)
    measurements = tuple(
        Measurement(modes[int(row)], 40, float(rng.uniform(0.1, 0.5)), float(rng.uniform(15.0, 50.0)))
        for row in rng.permutation(len(modes))[:SAMPLES]
    )
    ask = RequestMessage("front", 5, policy="balanced", state=ClientState(measurements), model_bytes=100_000)
    return experiment.model_dump_json(), to_json(ask)


if __name__ == "__main__":
    main()
