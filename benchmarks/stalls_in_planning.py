"""The worth of planning with stalls: a board with a slow loader, whose predictor knows of it or does not.

    python benchmarks/stalls_in_planning.py [--seeds 3]

An emulated AGX Xavier trains MobileNetV3-L in the mode of least energy that is predicted to end within 1.1 times what
MAXN takes, stalls included, after so many measured modes; five draws of these modes per seed. Its true minibatches are
the same in both cases: computing beside the input pipeline. With the loader known, what was measured is rid of its
stall before the predictor learns, and predictions get the stall of their mode; without, the predictor takes minibatches
as they come. Energy is that of the whole time to the deadline, compared with the best mode's.
"""

from __future__ import annotations

import numpy as np
from figures import build_parser, build_table
from rich.console import Console

from fedge.client import emulated
from fedge.client.corrections import predict_corrected
from fedge.client.loader_stalls import LoaderCorrection
from fedge.devices.board_kinds import build_knowledge
from fedge.experiment import Experiment, FleetEntry, LoaderSpec, WorkloadSpec
from fedge.predictors import load_predictor
from fedge.types import Measurement

CONSOLE = Console(width=150)
SLACK = 1.1
LATE_TOLERANCE = 1.02
"""Rounds longer than this multiple of their deadline count as late."""
MEASURED_COUNTS = (1, 4, 10)
LOADERS = {
    "no stall: 4 workers, cached": LoaderSpec(workers=4),
    "1 worker, cached, 1 megapixel": LoaderSpec(workers=1, image_mpixel=1.0),
    "1 worker, SD card": LoaderSpec(workers=1, storage="sd", cached=0.0, image_mpixel=1.0),
    "4 workers, hard disk": LoaderSpec(workers=4, storage="hdd", cached=0.0),
    "no workers, SSD": LoaderSpec(workers=0, cached=0.0),
}


def report_choices(seeds: int) -> None:
    """Report the cost of modes chosen from predictions alone."""
    title = "Mode chosen after so many measured ones: energy above the oracle's, time of the deadline, percent"
    headings = (f"{count}, {known}" for count in MEASURED_COUNTS for known in ("known", "not known"))
    table = build_table(title, "loader", *headings)
    for name, loader in LOADERS.items():
        clients = [emulated.load_client(_build_experiment(loader, seed), 0) for seed in range(1, 5 * seeds + 1)]
        cells = []
        for count in MEASURED_COUNTS:
            for known in (True, False):
                scores = np.array([_score_choice(one, count, known, i) for i, one in enumerate(clients)])
                energy, time = 100 * scores.mean(axis=0)
                cells.append(f"{energy - 100:+.1f}, {time:.0f}, {int((scores[:, 1] > LATE_TOLERANCE).sum())} late")
        table.add_row(name, *cells)
    CONSOLE.print(table)


def _score_choice(client: emulated.EmulatedClient, count: int, known: bool, seed: int) -> tuple[float, float]:
    """Return the chosen mode's true energy over the oracle's, and its true time over the deadline."""
    assert client.loader is not None
    truth, rng = client.truth, np.random.default_rng(seed)
    top = truth.find_row(client.kind.spec.maxn)
    rows = [top, *rng.choice(len(truth.modes), count - 1, replace=False)]
    waits = truth.stall_share
    assert waits is not None
    measurements = [
        Measurement(
            truth.modes[row],
            40,
            float(truth.step_s[row]),
            float(truth.power_w[row]),
            stall_s=float(waits[row] * truth.step_s[row]) if known else 0.0,
        )
        for row in map(int, rows)
    ]
    inner = load_predictor("fedge", build_knowledge(client.kind, (), float(truth.idle_w[top])))
    corrections = [LoaderCorrection(client.loader.expected)] if known else []
    predicted = predict_corrected(inner, corrections, truth.modes, measurements)
    deadline_s, idle_w = SLACK * float(truth.step_s[top]), float(truth.idle_w.min())
    joules = truth.step_s * (truth.power_w - idle_w) + deadline_s * idle_w
    predicted_j = predicted.step_s * (predicted.power_w - idle_w)
    row = int(
        np.argmin(np.where(predicted.step_s * np.exp(predicted.step_s_sd_log) <= deadline_s, predicted_j, np.inf))
    )
    least = float(np.where(truth.step_s <= deadline_s, joules, np.inf).min())
    return float(joules[row]) / least, float(truth.step_s[row]) / deadline_s


def _build_experiment(loader: LoaderSpec, seed: int) -> Experiment:
    return Experiment(
        seed=seed,
        backend="local",
        fleet=(FleetEntry(device="agx-xavier", loader=loader),),
        workload=WorkloadSpec(task="digits-cnn", cost="mobilenetv3l-gld23k", local_epochs=6, model_mb=1.0),
    )


if __name__ == "__main__":
    report_choices(build_parser(__doc__, seeds=3).parse_args().seeds)
