"""The columns of a run's tables: one row per round, one per client and round, one per event.

Seconds are on the fleet's clock (virtual on emulated fleets), counted from the run's start where the name ends in
``start_s`` or ``end_s``; nothing here depends on the backend or on real time, so that two backends write equal rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fedge.types import Trace

Status = Literal["done", "late", "failed", "cancelled"]
"""``late``: not done when the round ended; ``cancelled``: stopped because enough others were done."""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round of the fleet. None means unknown (no truth on real boards, no plan in the first round)."""

    round: int
    start_s: float
    end_s: float
    round_s: float
    deadline_s: float | None
    straggler: str
    selected: int
    done: int
    late: int
    failed: int
    energy_j: float
    """Every selected board from the round's start to its end: work, radio, and waiting at idle power."""
    train_energy_j: float
    oracle_energy_j: float | None
    """The least that a planner knowing the truth could reach at this round's length, waiting in the lowest modes."""
    maxn_round_s: float | None
    maxn_energy_j: float | None
    """The round's length and energy had every board worked and waited at MAXN (truth, without noise)."""
    maxn_parked_energy_j: float | None
    """The same, had every board worked at MAXN and waited in its lowest mode: what is saved without any prediction."""
    loss: float
    accuracy: float
    cancelled: int = 0
    available: int | None = None
    """Boards that could have been chosen."""
    stale: int = 0
    """Results of earlier rounds that were merged into this one's model."""
    resting_energy_j: float | None = None
    """The boards that took no part, at the idle power that they last told; not in ``energy_j``."""


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One board in one round; a late or failed one has its reason in ``error``."""

    round: int
    board: str
    device: str
    status: Status
    error: str | None
    start_s: float
    end_s: float
    """When the board was done (late boards: when the round was over)."""
    deadline_s: float | None
    down_s: float
    work_s: float
    up_s: float
    wait_s: float
    """From the board's end to the round's end."""
    feasible: bool | None
    why: str
    cores: int | None
    cpu_mhz: float | None
    gpu_mhz: float | None
    mem_mhz: float | None
    steps: int
    probes: int
    probe_s: float
    probe_j: float
    """How many other modes were tried on the way, and what that took; parts of ``steps``, ``work_s``, ``work_j``."""
    samples: int
    step_s: float | None
    predicted_step_s: float | None
    predicted_step_s_sd_log: float | None
    power_w: float | None
    predicted_power_w: float | None
    predicted_power_w_sd_log: float | None
    idle_w: float
    work_j: float
    radio_j: float
    energy_j: float
    """Work, radio and waiting at idle power, from the round's start to its end."""
    maxn_work_s: float | None
    """What the work would have taken at MAXN (truth, without noise)."""
    maxn_work_j: float | None
    oracle_work_s: float | None
    oracle_work_j: float | None
    """The work's time and energy in the mode that a planner knowing the truth would have chosen."""
    oracle_energy_j: float | None
    maxn_energy_j: float | None
    maxn_parked_energy_j: float | None
    """This board's parts of the round's figures of the same names."""
    loss: float | None
    accuracy: float | None
    temperature_c: float | None
    throttled: bool
    prior_time_ape: float | None
    prior_power_ape: float | None
    """Mean |predicted - true| / true over the board's modes before its first measurement."""
    time_ape: float | None = None
    power_ape: float | None = None
    """The same of the predictions that the round's mode was decided from."""
    own_samples: int | None = None
    shared_samples: int | None = None
    """How many measurements they were fitted to: the board's own, probes among them, and other boards'. The last four
    are None in tables of older runs."""
    asked_steps: int | None = None
    """Minibatches of the whole share; ``steps`` are fewer when the board had to stop."""
    mix_mode: str | None = None
    mix_steps: int | None = None
    """A second mode, and how many of ``steps`` were done in it."""
    staleness: int | None = None
    """How many new models there were between the one it trained on and the one its result went into."""
    charge: float | None = None
    """The share of its battery left at the round's end; None on mains."""
    requests: int | None = None
    late_requests: int | None = None
    dropped_requests: int | None = None
    """Of a standing inference service, while the board worked: requests answered or dropped, of them answered after
    the latency budget, and dropped. None without a service, like all that follow, and in tables of older runs."""
    latency_budget_s: float | None = None
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_p99_s: float | None = None
    latency_worst_s: float | None = None
    """From a request's arrival to its answer; percentiles are told to 5 %."""
    service_batch: int | None = None
    """The batch size in the mode decided on."""
    service_share: float | None = None
    """The part of the time of its work that serving took."""
    service_played: float | None = None
    """Emulated boards: the share of the requests that were played one by one; the rest is taken to go likewise."""
    train_steps_per_s: float | None = None
    """Training minibatches per second of work beside the service."""
    batch_size: int | None = None
    width: float | None = None
    """What was trained at: samples of a minibatch, and the part of every layer's channels. None where nobody knows
    what a step needs, like all that follow, and in tables of older runs."""
    memory_mb: float | None = None
    """The peak of the training, as told by the board."""
    predicted_memory_mb: float | None = None
    memory_limit_mb: float | None = None
    """What it was thought to need before, and what it might use."""
    out_of_memory: int | None = None
    lost_s: float | None = None
    """Tries that ran out of memory in this round, and what they took; a part of ``work_s``."""
    lowered: str | None = None
    """What was lowered beside the experiment and why; None where nothing was."""


RECORDED = "recorded"
"""The kind of event that tells of a real board which is a recorded folder: its figures were written there."""

MEMORY = "memory"
"""The kind of event that tells what a board lowered, or need not lower any more, to fit into its memory."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something worth telling that is not a number of a round."""

    at_s: float
    round: int
    board: str | None
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One stretch of a board's trace: ``power_w`` is its mean power, ``power_w * span_s`` its energy."""

    at_s: float
    """When the stretch began."""
    span_s: float
    round: int
    """0 outside of rounds."""
    board: str
    power_w: float
    temperature_c: float | None = None
    cpu_mhz: float | None = None
    gpu_mhz: float | None = None
    mem_mhz: float | None = None
    cpu_load: float | None = None
    gpu_load: float | None = None
    mem_load: float | None = None
    rails_w: dict[str, float] = field(default_factory=dict)
    """Watts by rail."""


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """A board's trace in one round, ``start_s`` on the fleet's clock: becomes a ``SampleRow`` for every stretch."""

    round: int
    board: str
    trace: Trace
