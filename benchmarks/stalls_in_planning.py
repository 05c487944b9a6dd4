"""The worth of planning with stalls: a board with a slow loader, whose predictor knows of it or does not.

    python benchmarks/stalls_in_planning.py [choices|rounds]... [--seeds 3]

choices   the mode of least energy that is predicted to end within 1.1 times MAXN's time, after so many measured modes;
          five draws of these modes per seed
rounds    rounds one after the other, with trials and two modes in a round, as boards play them

An emulated AGX Xavier trains MobileNetV3-L under the deadline of 1.1 times what its round takes at MAXN, stalls
included. Its true minibatches are the same in both cases: computing beside the input
pipeline. With the loader known, what was measured is rid of its stall before the predictor learns, and predictions get
the stall of their mode; without, the predictor takes minibatches as they come. The third line of a loader is the least
that the board could have drawn in one mode, waiting for the deadline in its lowest one. Joules are those of the whole
time to the deadline (of the round, where it was late).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from figures import build_table, run_parts
from rich.console import Console

from fedge import workloads
from fedge.client import emulated
from fedge.client.corrections import predict_corrected
from fedge.client.loader_stalls import LoaderCorrection
from fedge.devices.board_kinds import build_knowledge
from fedge.devices.emulated_board import WARM_UP_STEPS
from fedge.experiment import Experiment, FleetEntry, LoaderSpec, WorkloadSpec
from fedge.predictors import load_predictor
from fedge.types import Measurement, RoundGoal, RoundReport
from fedge.wire import ClientState, RequestMessage

CONSOLE = Console(width=150)
SLACK = 1.1
LATE_TOLERANCE = 1.02
"""Rounds longer than this multiple of their deadline count as late."""
MEASURED_COUNTS = (1, 4, 10)
ROUNDS = 6
ROUND_HEADINGS = (
    "loader", "energy, J a round", "round 1", "last", "of the deadline", "late",
    "error of time % first", "last", "mode",
)  # fmt: skip
POLICY = "least-energy-within-deadline"
LOADERS = {
    "no stall: 4 workers, cached": LoaderSpec(workers=4),
    "1 worker, cached, 1 megapixel": LoaderSpec(workers=1, image_mpixel=1.0),
    "1 worker, SD card": LoaderSpec(workers=1, storage="sd", cached=0.0, image_mpixel=1.0),
    "4 workers, hard disk": LoaderSpec(workers=4, storage="hdd", cached=0.0),
    "no workers, SSD": LoaderSpec(workers=0, cached=0.0),
}


@dataclass(frozen=True, slots=True)
class BoardRun:
    """One board's rounds: joules of each, number of late ones, the last one's main mode, time errors at both ends."""

    energy_j: tuple[float, ...]
    late: int
    busy: float
    """Mean share of the deadline that a round took."""
    mode: str
    first_ape: float
    last_ape: float


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


def report_rounds(seeds: int) -> None:
    """Report rounds as clients run them."""
    for name, loader in LOADERS.items():
        table = build_table(name, *ROUND_HEADINGS, left=("mode",))
        least = []
        for known in (True, False):
            runs = []
            for seed in range(1, seeds + 1):
                experiment = _build_experiment(loader, seed)
                with _override_loader_knowledge(known):
                    runs.append(_run_rounds(experiment))
                least.append(_find_oracle(experiment))
            table.add_row("known" if known else "not known", *_format_cells(runs))
        table.add_row("oracle", f"{np.mean([j for j, _ in least]):.0f}", "", "", "", "", "", "", least[0][1])
        CONSOLE.print(table)


def _format_cells(runs: list[BoardRun]) -> list[str]:
    energy = np.array([run.energy_j for run in runs])
    errors = [f"{100 * np.mean([getattr(run, name) for run in runs]):.1f}" for name in ("first_ape", "last_ape")]
    figures = [f"{energy.mean():.0f}", f"{energy[:, 0].mean():.0f}", f"{energy[:, -1].mean():.0f}"]
    figures.append(f"{100 * np.mean([run.busy for run in runs]):.1f} %")
    return [*figures, f"{sum(run.late for run in runs)} of {energy.size}", *errors, runs[0].mode]


def _build_experiment(loader: LoaderSpec, seed: int) -> Experiment:
    return Experiment(
        seed=seed,
        backend="local",
        fleet=(FleetEntry(device="agx-xavier", loader=loader),),
        workload=WorkloadSpec(task="digits-cnn", cost="mobilenetv3l-gld23k", local_epochs=6, model_mb=1.0),
    )


@contextmanager
def _override_loader_knowledge(known: bool) -> Iterator[None]:
    """Emulate boards whose predictor knows the loader or not; their true behaviour is the same."""
    load_client, clients = emulated.load_client, dict[tuple[str, int], emulated.EmulatedClient]()

    def load_without_loader(experiment: Experiment, index: int) -> emulated.EmulatedClient:
        key = (experiment.model_dump_json(), index)
        if key not in clients:
            client = load_client(experiment, index)
            clients[key] = dataclasses.replace(client, setup=dataclasses.replace(client.setup, loader=None))
        return clients[key]

    if not known:
        emulated.load_client = load_without_loader
    try:
        yield
    finally:
        emulated.load_client = load_client


def _round_deadline_s(client: emulated.EmulatedClient) -> float:
    step_s = float(client.surface.step_s[client.surface.find_row(client.kind.spec.maxn)])
    link = client.setup.transfer(RequestMessage("front"), None)
    return SLACK * ((client.setup.steps + WARM_UP_STEPS) * step_s + link.down_s + link.up_s)


def _run_rounds(experiment: Experiment) -> BoardRun:
    client = emulated.load_client(experiment, 0)
    deadline_s, state = _round_deadline_s(client), ClientState()
    arrays = workloads.load_experiment_task(experiment).initial_arrays(1)
    reports: list[RoundReport] = []
    for number in range(1, ROUNDS + 1):
        goal = RoundGoal(POLICY, client.setup.steps, deadline_s=deadline_s, rounds_left=ROUNDS - number)
        ask = RequestMessage(
            "train",
            round=number,
            start_s=number * deadline_s,
            policy=POLICY,
            state=state,
            goal=goal,
        )
        answer, _ = emulated.answer_request(experiment, 0, ask, arrays)
        assert answer.report is not None, answer.error
        assert answer.state is not None
        reports.append(answer.report)
        state = answer.state
    return BoardRun(
        tuple(_round_energy_j(report, deadline_s) for report in reports),
        late=sum(report.busy_s > LATE_TOLERANCE * deadline_s for report in reports),
        busy=float(np.mean([report.busy_s for report in reports])) / deadline_s,
        mode=str(max(reports[-1].parts, key=lambda part: part.steps).mode),
        first_ape=reports[0].prior_time_ape or 0.0,
        last_ape=reports[-1].time_ape or 0.0,
    )


def _round_energy_j(report: RoundReport, deadline_s: float) -> float:
    return sum(part.work_j for part in report.parts) + report.idle_w * max(0.0, deadline_s - report.work_s)


def _find_oracle(experiment: Experiment) -> tuple[float, str]:
    client = emulated.load_client(experiment, 0)
    surface, deadline_s = client.truth, _round_deadline_s(client)
    link = client.setup.transfer(RequestMessage("front"), None)
    work_s = (client.setup.steps + WARM_UP_STEPS) * surface.step_s
    idle_w = float(surface.idle_w.min())
    joules = work_s * surface.power_w + idle_w * np.maximum(0.0, deadline_s - work_s)
    joules[work_s + link.down_s + link.up_s > deadline_s] = np.inf
    row = int(np.argmin(joules))
    return float(joules[row]), str(surface.modes[row])


if __name__ == "__main__":
    run_parts(__doc__, {"choices": report_choices, "rounds": report_rounds}, seeds=3)
