"""Rows of a run's tables: one per round, one per client and round, one per event, and one per sample.

Seconds are on the fleet's clock (simulated time on emulated fleets), counted from the run's start where the name ends
in ``start_s`` or ``end_s``; nothing here depends on the backend or on wall time, so that two backends write equal rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fedge.types import Trace

Status = Literal["done", "late", "failed", "cancelled"]
"""``late``: unfinished when the round ended; ``cancelled``: stopped because enough other clients were done."""
REFUSED = "refused: "
"""Begins the error of a failed client whose result was there, and was not taken for what it holds."""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round of the fleet. None means unknown (no ground truth on real boards, no plan in the first round)."""

    round: int
    """Number of the round, from 1; of the model, in an asynchronous run."""
    start_s: float
    end_s: float
    round_s: float
    """Start, end and length of the round."""
    deadline_s: float | None
    """Planned deadline, from the start of the round; None without a plan."""
    straggler: str
    """Name of the client that finished last."""
    selected: int
    done: int
    late: int
    failed: int
    """Number of clients that were selected, finished in time, were late, or failed."""
    energy_j: float
    """Energy of every selected board from the round's start to its end: work, radio, and waiting at idle power."""
    train_energy_j: float
    """The part of ``energy_j`` spent on training."""
    oracle_energy_j: float | None
    """Least energy of a planner with the true costs at this round's length, waiting in the lowest modes. Here and in
    the other comparisons, a board that failed without any work counts with what it drew: it saved nothing.
    """
    maxn_round_s: float | None
    maxn_energy_j: float | None
    """Round length and energy if every board had worked and waited at MAXN (true costs, without noise)."""
    maxn_parked_energy_j: float | None
    """Round energy if every board had worked at MAXN and waited in its lowest mode: the saving without any
    prediction.
    """
    loss: float | None
    accuracy: float | None
    """Of the new model on the test set; None for the task ``none``."""
    cancelled: int = 0
    """Number of clients that were stopped because enough others had finished."""
    available: int | None = None
    """Boards that could have been selected."""
    stale: int = 0
    """Results of earlier rounds that were merged into this round's model."""
    resting_energy_j: float | None = None
    """Energy of the boards that were not selected, at their last reported idle power; not part of ``energy_j``."""
    client_loss: float | None = None
    client_accuracy: float | None = None
    """Of the new model on the clients' own test samples, as the strategy aggregates them; None if no client evaluated,
    like the next two.
    """
    evaluation_s: float | None = None
    evaluation_energy_j: float | None = None
    """Time after the round's end in which clients evaluated, and the energy of all boards in it; not part of
    ``round_s`` and ``energy_j``.
    """
    refused: int = 0
    """Of the failed ones, those whose result was refused: of the wrong form, not finite, or out of all proportion."""
    energy_cost: float | None = None
    """Cost, or carbon, of the energy of all boards, resting and evaluating ones too, computed from the experiment's
    signal in its unit, as if each board drew it evenly; None without one, and in tables of older runs.
    """


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One board in one round; ``error`` gives the reason of a late or failed one."""

    round: int
    board: str
    device: str
    """Round, name of the board, and its kind."""
    status: Status
    """Outcome: ``done``, ``late``, ``failed`` or ``cancelled``."""
    error: str | None
    """Reason of a failure or of lateness; None without one."""
    start_s: float
    """Start of the round."""
    end_s: float
    """When the board was done (late boards: when the round ended)."""
    deadline_s: float | None
    """Deadline from the start of the round; None without one."""
    down_s: float
    work_s: float
    up_s: float
    """Time of fetching the model, of working, and of sending the result."""
    wait_s: float
    """From the board's end to the round's end."""
    feasible: bool | None
    why: str
    """Whether a mode could meet the goal, and the reason for the choice."""
    cores: int | None
    cpu_mhz: float | None
    gpu_mhz: float | None
    mem_mhz: float | None
    """The chosen power mode: number of CPU cores, and clocks of CPU, GPU and memory."""
    steps: int
    """Steps done."""
    probes: int
    probe_s: float
    probe_j: float
    """Number, time and energy of probes of other modes; parts of ``steps``, ``work_s`` and ``work_j``."""
    samples: int
    """Number of the client's training samples."""
    step_s: float | None
    predicted_step_s: float | None
    predicted_step_s_sd_log: float | None
    """Time of a step, measured and predicted, and the spread of the prediction: the standard deviation of its
    logarithm.
    """
    power_w: float | None
    predicted_power_w: float | None
    predicted_power_w_sd_log: float | None
    """Power of the board while it works: measured, predicted, and the spread of the prediction."""
    idle_w: float
    """Power at idle in the mode in which the board waited."""
    work_j: float
    radio_j: float
    """Energy of the work, and of the transfers."""
    energy_j: float
    """Work, radio and waiting at idle power, from the round's start to its end."""
    maxn_work_s: float | None
    """Time of the work at MAXN (true cost, without noise)."""
    maxn_work_j: float | None
    """Energy of that work at MAXN."""
    oracle_work_s: float | None
    oracle_work_j: float | None
    """Time and energy of the work in the mode that a planner with the true costs would choose."""
    oracle_energy_j: float | None
    maxn_energy_j: float | None
    maxn_parked_energy_j: float | None
    """This board's parts of the round's figures of the same names."""
    loss: float | None
    accuracy: float | None
    """Of the training, on the client's own samples; None for the task ``none``."""
    temperature_c: float | None
    """Highest temperature during the work."""
    throttled: bool
    """Whether the board lowered its clocks because of heat or current."""
    prior_time_ape: float | None
    prior_power_ape: float | None
    """Mean |predicted - true| / true over the board's modes before its first measurement."""
    time_ape: float | None = None
    power_ape: float | None = None
    """The same for the predictions that the round's decision used."""
    own_samples: int | None = None
    shared_samples: int | None = None
    """Number of measurements behind those predictions: the board's own, including probes, and other boards'. The last
    four are None in tables of older runs.
    """
    asked_steps: int | None = None
    """Steps of the whole share; ``steps`` is smaller if the board had to stop."""
    mix_mode: str | None = None
    mix_steps: int | None = None
    """A second mode, and the part of ``steps`` done in it."""
    staleness: int | None = None
    """Number of model versions between the one it trained on and the one its result was merged into."""
    charge: float | None = None
    """Battery charge at the round's end, 0 to 1; None on mains power."""
    requests: int | None = None
    late_requests: int | None = None
    dropped_requests: int | None = None
    """Requests of an inference service while the board worked: answered or dropped, answered after the latency budget,
    and dropped. None without a service, like all that follow, and in tables of older runs.
    """
    latency_budget_s: float | None = None
    """Latency budget of the service."""
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_p99_s: float | None = None
    latency_worst_s: float | None = None
    """From a request's arrival to its answer; percentiles have a resolution of 5 %."""
    service_batch: int | None = None
    """Batch size in the chosen mode."""
    service_share: float | None = None
    """Share of the work time spent on serving."""
    service_played: float | None = None
    """Emulated boards: share of the requests that were simulated one by one; the rest is extrapolated."""
    train_steps_per_s: float | None = None
    """Training steps per second of work beside the service."""
    batch_size: int | None = None
    width: float | None = None
    """Minibatch size, and share of every layer's channels that was trained. None if a step's memory demand is unknown,
    like all that follow, and in tables of older runs.
    """
    memory_mb: float | None = None
    """Peak memory of the training, as reported by the board."""
    predicted_memory_mb: float | None = None
    memory_limit_mb: float | None = None
    """Predicted peak memory, and the limit."""
    out_of_memory: int | None = None
    lost_s: float | None = None
    """Attempts that ran out of memory in this round, and their time; a part of ``work_s``."""
    lowered: str | None = None
    """Settings that were lowered below the experiment's, with the reason; None if there were none."""
    link_mbps: float | None = None
    """Real boards only: rate of both transfers; an estimate, because Flower's polling counts."""
    switch_s: float | None = None
    """Time of mode changes during the work, a part of ``work_s``. None in tables of older runs."""
    left_out: bool | None = None
    """Whether nothing fits into the board's memory, so that it is not asked again until its memory settings change."""
    recalled_samples: int | None = None
    """Number of the board's measurements of earlier runs behind the round's predictions; 0 once it contradicts them."""
    moved_mb: float | None = None
    """Size of the model that the board fetched plus the one that it sent. None in tables of older runs."""
    step_share: float | None = None
    encoding: str | None = None
    """Work that the plan asked for: steps relative to those of the client's whole share, and encoding of the update.
    None without a report and in tables of older runs.
    """

    @property
    def is_refused(self) -> bool:
        """Whether the client failed because its result was refused; its time and energy are those of its work."""
        return self.status == "failed" and (self.error or "").startswith(REFUSED)


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One board's evaluation of the model of a round; one with an ``error`` has no result, but the energy until it."""

    round: int
    board: str
    device: str
    """Round, name of the board, and its kind."""
    error: str | None
    """Why there is no result; None if there is one."""
    start_s: float
    end_s: float
    """Start and end of the board's part: download and evaluation."""
    samples: int = 0
    """Number of the client's own test samples."""
    loss: float | None = None
    accuracy: float | None = None
    """Of the round's model on these samples."""
    cores: int | None = None
    cpu_mhz: float | None = None
    gpu_mhz: float | None = None
    mem_mhz: float | None = None
    """The power mode: number of CPU cores, and clocks of CPU, GPU and memory."""
    down_s: float = 0.0
    work_s: float = 0.0
    """Time of fetching the model, and of evaluating it."""
    wait_s: float = 0.0
    """From the board's end to that of the last board."""
    work_j: float = 0.0
    radio_j: float = 0.0
    """Energy of the evaluation, and of the transfer."""
    energy_j: float = 0.0
    """Work, radio and waiting at idle power, until the last board was done."""


def relative_error(predicted: float | None, measured: float | None) -> float | None:
    """Return |predicted - measured| / measured; None if one of them is unknown or nothing was measured."""
    return None if predicted is None or not measured else abs(predicted - measured) / measured


RECORDED = "recorded"
"""Kind of the event that marks a real board as a recording: its figures are read from a recorded folder."""
NOTHING_MEASURED = "its files are a recorded folder: its watts were written there, and nothing is measured"
"""Words of that event."""

NOT_REPRODUCIBLE = "not-reproducible"
"""Kind of the event that the clients trained on CUDA."""

WAITING = "waiting"
"""Kind of the event that a run has not begun yet, because other runs hold its boards."""

LEFT_OUT = "left-out"
"""Kind of the event that a board is not asked again, since nothing fits into its memory."""

MEMORY = "memory"
"""Kind of the event that reports settings lowered, or restored, to fit a board's memory."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of a run that is not a figure of a round."""

    at_s: float
    """Time of the event."""
    round: int
    """Round in which it happened."""
    board: str | None
    """Name of the board; None if the event concerns no board."""
    kind: str
    """Kind of the event, such as ``late``, ``failed``, ``memory`` or ``left-out``."""
    message: str
    """What happened."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One stretch of a board's trace: ``power_w`` is its mean power, ``power_w * span_s`` its energy in joules."""

    at_s: float
    """Begin of the stretch."""
    span_s: float
    """Length of the stretch."""
    round: int
    """0 outside of rounds."""
    board: str
    """Name of the board."""
    power_w: float
    """Mean power of the whole board."""
    temperature_c: float | None = None
    """Temperature of the hottest sensor."""
    cpu_mhz: float | None = None
    gpu_mhz: float | None = None
    mem_mhz: float | None = None
    """Clocks of CPU, GPU and memory."""
    cpu_load: float | None = None
    gpu_load: float | None = None
    mem_load: float | None = None
    """Loads of CPU, GPU and memory, 0 to 1."""
    rails_w: dict[str, float] = field(default_factory=dict)
    """Watts by rail."""


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """A board's trace in one round, ``start_s`` on the fleet's clock; each stretch becomes a ``SampleRow``."""

    round: int
    board: str
    trace: Trace
