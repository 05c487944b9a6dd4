"""The time and the energy roofline of a power mode, and a batch's time and energy in many modes at once.

Symbols: W FLOP, Q bytes between processor and memory, I = W/Q intensity, T seconds, E joules; of a mode
======  ===========  ==================================================================
tau_f   ``tau_f``    seconds per FLOP
tau_m   ``tau_m``    seconds per byte
eps_f   ``eps_f``    joules per FLOP, beyond the constant power
eps_m   ``eps_m``    joules per byte, beyond the constant power
pi_0    ``pi_0_w``   constant power, watts
======  ===========  ==================================================================
T = max(W tau_f, Q tau_m), with the balance beta = tau_m / tau_f;  E = eps_f W + eps_m Q + pi_0 T.
Closed form: e = eps_f + pi_0 tau_f; eta = eps_f / e; B_eps = eps_m / eps_f;
B(I) = eta B_eps + (1 - eta) max(0, beta - I);  E / W = e (1 + B(I) / I).
The energy balance is the I at which B(I) = I, where as much energy goes into bytes and waiting for them as into FLOP:
at or above it a kernel needs less than twice the least energy per FLOP. If eta B_eps <= beta it lies at or below beta,
so that whatever is bound by FLOP in time (I >= beta) is so in energy: time-efficient implies energy-efficient.

A batch has overheads beyond Pagoda's model. N launches (one per operator of the network), b samples, and
=====================  ====================================================================================
``kernel_s``           per launch on the GPU: the least time of a kernel, however small it is
``launch_s``           per launch on the CPU, hidden behind the GPU unless this is the slower of the two
``sample_s``           per sample on the CPU: loading and preprocessing, hidden likewise
``copy_s``             per sample on the CPU, not hidden
``fixed_s``            per batch, whatever the clocks
``launch_j sample_j``  joules per launch and per sample on the CPU
``overlap_*``          the norm that joins two times: 1 one after the other, infinite one hidden behind the other
=====================  ====================================================================================
G = |W tau_f, Q tau_m| + N kernel_s;  T = |G, N launch_s, b sample_s| + b copy_s + fixed_s
E = eps_f W + eps_m Q + N launch_j + b sample_j + pi_0 T
Without overheads (``RooflineOverheads`` None) this is Pagoda's own model.

References:
    Pagoda, arXiv 2509.20189; Choi et al., "A roofline model of energy", IPDPS 2013.

Choose the mode of least predicted energy whose predicted time stays within a slowdown of MAXN, and explain it.

Predictions are not exact, so a knob is lowered only where that pays: each lowered knob has to save
``MIN_KNOB_SAVING`` of the energy, or it stays at its top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedge.costs.cost_profile import WorkloadKind
from fedge.costs.gpu_rates import OPTIMISER_PASSES
from fedge.costs.layers.network_cost import TRAINING_PASSES, BatchWork, NetworkCost, sum_layers
from fedge.decisions.mode_objectives import find_least_energy_within_slowdown
from fedge.errors import BadInput
from fedge.physics.time_power_model import q_norm
from fedge.types import Floats, Label, Modes, PowerMode, Predictions


@dataclass(frozen=True, slots=True)
class Roofline:
    """The five constants of one power mode; none is negative, and ``tau_f`` is above 0."""

    tau_f: float
    tau_m: float
    eps_f: float
    eps_m: float
    pi_0_w: float
    label: Label

    @property
    def balance(self) -> float:
        """Balance beta in FLOP per byte: below it a kernel is bound by memory, above it by arithmetic."""
        return self.tau_m / self.tau_f

    @property
    def flop_j(self) -> float:
        """Joules per FLOP, e, of a kernel bound by arithmetic."""
        return self.eps_f + self.pi_0_w * self.tau_f

    @property
    def flop_share(self) -> float:
        """Share eta of ``flop_j`` that the arithmetic itself takes; the rest is constant power meanwhile."""
        return self.eps_f / self.flop_j if self.flop_j > 0 else 0.0

    @property
    def byte_weight(self) -> float:
        """The energy of a byte in units of a FLOP's, eta B_eps = eps_m / e, FLOP per byte."""
        return self.eps_m / self.flop_j if self.flop_j > 0 else 0.0

    @property
    def energy_balance(self) -> float:
        """The intensity in FLOP per byte at which bytes, and waiting for them, take as much energy as FLOP."""
        eta, own = self.flop_share, self.byte_weight
        if own >= self.balance:
            return own
        return (own + (1.0 - eta) * self.balance) / (2.0 - eta)

    @property
    def time_implies_energy(self) -> bool:
        """Whether every kernel that is time-efficient (I >= beta) is energy-efficient: eta B_eps <= beta."""
        return self.byte_weight <= self.balance

    def time_s(self, work: BatchWork) -> float:
        """Return the seconds of the work: the slower of arithmetic and memory, with the other hidden behind it."""
        return max(work.flop * self.tau_f, work.bytes * self.tau_m)

    def energy_j(self, work: BatchWork) -> float:
        """Return the joules of the work: its FLOP, its bytes, and the constant power for its duration."""
        return self.eps_f * work.flop + self.eps_m * work.bytes + self.pi_0_w * self.time_s(work)

    def flop_per_s(self, intensity: float) -> float:
        """Return the time roofline: FLOP/s at an intensity in FLOP per byte."""
        return 1.0 / max(self.tau_f, self.tau_m / intensity)

    def flop_per_j(self, intensity: float) -> float:
        """Return the energy roofline in its closed form: FLOP/J at an intensity in FLOP per byte."""
        waiting_j = self.pi_0_w * self.tau_f * max(0.0, self.balance - intensity)
        return 1.0 / (self.flop_j + (self.eps_m + waiting_j) / intensity)


def describe_balance_side(roofline: Roofline, work: BatchWork) -> str:
    """Describe on which side of both balance points the work lies."""
    bound = "arithmetic" if work.intensity >= roofline.balance else "memory"
    dear = "FLOP" if work.intensity >= roofline.energy_balance else "bytes and waiting for them"
    return (
        f"{work.intensity:.3g} FLOP per byte: bound by {bound} in time (balance {roofline.balance:.3g}), and most of "
        f"its energy goes into {dear} (balance {roofline.energy_balance:.3g})"
    )


def describe_implication(roofline: Roofline) -> str:
    """Describe whether time-efficient implies energy-efficient in this mode, and why."""
    own, beta = roofline.byte_weight, roofline.balance
    if roofline.time_implies_energy:
        return (
            f"Time-efficient implies energy-efficient: a byte costs the energy of {own:.3g} FLOP but the time of "
            f"{beta:.3g}, so that constant power makes waiting dearer than moving."
        )
    return (
        f"Time-efficient does not imply energy-efficient: a byte costs the energy of {own:.3g} FLOP and only the time "
        f"of {beta:.3g}; between the two a kernel is fast while most of its energy goes into bytes."
    )


@dataclass(frozen=True, slots=True, eq=False)
class RooflineBatch:
    """The work of one batch; numbers, or arrays of one shape that broadcast with the modes' arrays."""

    flop: Floats | float
    bytes: Floats | float
    launches: Floats | float
    samples: Floats | float


@dataclass(frozen=True, slots=True, eq=False)
class RooflineOverheads:
    """Overheads beyond Pagoda's model per mode: arrays of shape (n,) in seconds and joules, and the two norms."""

    kernel_s: Floats
    launch_s: Floats
    sample_s: Floats
    copy_s: Floats
    fixed_s: Floats
    launch_j: Floats
    sample_j: Floats
    overlap_gpu: float
    overlap_stages: float


@dataclass(frozen=True, slots=True, eq=False)
class ModeRooflines:
    """The five constants of every mode, arrays of shape (n,), and the overheads; None for Pagoda's own model."""

    tau_f: Floats
    tau_m: Floats
    eps_f: Floats
    eps_m: Floats
    pi_0_w: Floats
    label: Label
    overheads: RooflineOverheads | None = None

    def mode_roofline(self, row: int) -> Roofline:
        """Return the roofline of one mode."""
        five = {name: float(getattr(self, name)[row]) for name in ("tau_f", "tau_m", "eps_f", "eps_m", "pi_0_w")}
        return Roofline(**five, label=self.label)


@dataclass(frozen=True, slots=True, eq=False)
class BatchDurations:
    """Seconds of a batch in every mode, and its parts: on the GPU, launching, preparing samples; shape (n,)."""

    total_s: Floats
    gpu_s: Floats
    launch_s: Floats
    sample_s: Floats


def build_roofline_batch(network: NetworkCost, batch_size: int, kind: WorkloadKind = "infer") -> RooflineBatch:
    """Return a batch of inference, whose layers are launched once each, or a training step.

    A step's forward and backward passes and the update by SGD with momentum are what ``fedge.costs.gpu_rates`` prices.
    """
    work = network.batch_work(batch_size, kind)
    if kind == "infer":
        return RooflineBatch(work.flop, work.bytes, float(len(network.layers)), float(batch_size))
    counted = sum_layers(network, training=True)
    moved = TRAINING_PASSES * batch_size * (counted.moved_bytes + counted.depthwise_bytes)
    moved += (TRAINING_PASSES + OPTIMISER_PASSES) * counted.weight_bytes
    return RooflineBatch(work.flop, moved, TRAINING_PASSES * counted.operators, float(batch_size))


def batch_to_work(batch: RooflineBatch) -> BatchWork:
    """Return the work of a batch that holds numbers."""
    return BatchWork(float(batch.flop), float(batch.bytes))


def compute_batch_times(rooflines: ModeRooflines, batch: RooflineBatch) -> BatchDurations:
    """Return the seconds of a batch in every mode, shape (n,)."""
    math_s, mem_s = batch.flop * rooflines.tau_f, batch.bytes * rooflines.tau_m
    extra = rooflines.overheads
    if extra is None:
        total_s = np.maximum(math_s, mem_s)
        return BatchDurations(total_s, total_s, np.zeros_like(total_s), np.zeros_like(total_s))
    gpu_s = q_norm(extra.overlap_gpu, math_s, mem_s) + batch.launches * extra.kernel_s
    launch_s, sample_s = batch.launches * extra.launch_s, batch.samples * extra.sample_s
    overlapped_s = q_norm(extra.overlap_stages, gpu_s, launch_s, sample_s)
    return BatchDurations(overlapped_s + batch.samples * extra.copy_s + extra.fixed_s, gpu_s, launch_s, sample_s)


def batch_energy_j(rooflines: ModeRooflines, batch: RooflineBatch, total_s: Floats) -> Floats:
    """Return the joules of a batch that takes ``total_s`` seconds in every mode, shape (n,)."""
    joules = rooflines.eps_f * batch.flop + rooflines.eps_m * batch.bytes + rooflines.pi_0_w * total_s
    extra = rooflines.overheads
    if extra is not None:
        joules = joules + extra.launch_j * batch.launches + extra.sample_j * batch.samples
    return np.asarray(joules, dtype=np.float64)


MIN_KNOB_SAVING = 0.01
"""Default share of the energy that lowering one knob must save, well below the error of predicted power."""
DEFAULT_MAX_SLOWDOWN = 1.05
"""Default limit of the time relative to MAXN's."""
_KNOBS = (
    ("cores", "cores", ""),
    ("cpu_mhz", "CPU clock", " MHz"),
    ("gpu_mhz", "GPU clock", " MHz"),
    ("mem_mhz", "memory clock", " MHz"),
)


@dataclass(frozen=True, slots=True)
class SlowdownChoice:
    """The rows of the chosen mode and of MAXN, and the predicted slowdown and saving relative to MAXN."""

    row: int
    maxn_row: int
    slowdown: float
    """Predicted time divided by MAXN's."""
    saving: float
    """Predicted share of MAXN's energy that is saved."""


def choose_within_slowdown(
    modes: Modes,
    time_s: Floats,
    joules: Floats,
    maxn_row: int,
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    margin: Floats | float = 0.0,
) -> SlowdownChoice:
    """Choose the row of least energy, with ``MIN_KNOB_SAVING``, among those within the slowdown; MAXN always is.

    Predicted seconds and joules are of shape (modes,). The slowdown is relative to MAXN's time. The margin on predicted
    times is in log units, of shape (modes,) or one for all.

    Raises:
        BadInput: For a slowdown below 1.
    """
    if not (math.isfinite(max_slowdown) and max_slowdown >= 1.0):
        raise BadInput("--max-slowdown", f"{max_slowdown:g}", "1 or more, as 1.05 for at most 5 % slower than MAXN")
    lowered = (modes.knobs < modes.knobs[maxn_row]).sum(axis=1)
    priced_w = joules * (1.0 + MIN_KNOB_SAVING) ** lowered / time_s
    sd_log = np.full_like(time_s, margin)
    priced = Predictions(modes, step_s=time_s, power_w=priced_w, step_s_sd_log=sd_log, power_w_sd_log=sd_log)
    row = find_least_energy_within_slowdown(priced, maxn_row, max_slowdown, z=1.0).row
    slowdown, saving = float(time_s[row] / time_s[maxn_row]), 1.0 - float(joules[row] / joules[maxn_row])
    return SlowdownChoice(row, maxn_row, slowdown=slowdown, saving=saving)


def find_oracle_row(step_s: Floats, joules: Floats, maxn_row: int) -> int:
    """Return the row of least measured energy among those whose measured time is within ``DEFAULT_MAX_SLOWDOWN``.

    Measured seconds and joules are of shape (modes,); joules are infinite where a mode is not allowed.
    """
    return int(np.argmin(np.where(step_s <= DEFAULT_MAX_SLOWDOWN * step_s[maxn_row], joules, np.inf)))


def explain_choice(
    choice: SlowdownChoice, modes: Modes, roofline: Roofline, batch: RooflineBatch, spent: BatchDurations
) -> str:
    """Explain the choice: the bottleneck at MAXN, the knobs lowered, and their cost; ``roofline`` is MAXN's."""
    chosen, maxn = modes[choice.row], modes[choice.maxn_row]
    bound, paced_by = _describe_bound(choice.maxn_row, roofline, batch, spent)
    lowered = {
        name: f"{title} from {getattr(maxn, name):g} to {getattr(chosen, name):g}{unit}"
        for name, title, unit in _KNOBS
        if getattr(chosen, name) < getattr(maxn, name)
    }
    if not lowered:
        return f"At MAXN {bound}. Every lower mode is slower than allowed or saves too little: MAXN stays."
    reason = "as far as the slowdown allows" if paced_by & lowered.keys() else "as it does not set the pace"
    what = f"{_format_percent(choice.slowdown - 1.0)} slower, {_format_percent(choice.saving)} less energy (predicted)"
    return f"At MAXN {bound}. Lowered, {reason}: {', '.join(lowered.values())}; {what}."


def _describe_bound(row: int, roofline: Roofline, batch: RooflineBatch, spent: BatchDurations) -> tuple[str, set[str]]:
    """Return a description of the bottleneck, and the knobs that it depends on."""
    gpu_ms, launch_ms, sample_ms = (1e3 * float(part[row]) for part in (spent.gpu_s, spent.launch_s, spent.sample_s))
    if launch_ms >= max(gpu_ms, sample_ms):
        words = f"launching on the CPU sets the pace ({launch_ms:.3g} ms beside {gpu_ms:.3g} ms on the GPU)"
        return words, {"cpu_mhz"}
    if sample_ms > gpu_ms:
        words = f"preparing samples on the CPU sets the pace ({sample_ms:.3g} ms beside {gpu_ms:.3g} ms on the GPU)"
        return words, {"cores", "cpu_mhz"}
    work = batch_to_work(batch)
    words = f"the GPU sets the pace ({gpu_ms:.3g} ms beside {launch_ms:.3g} ms of launches on the CPU)"
    return f"{words}: {describe_balance_side(roofline, work)}", {
        "gpu_mhz" if work.intensity >= roofline.balance else "mem_mhz"
    }


def _format_percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"


def parse_mode(text: str, where: str = "--mode") -> PowerMode:
    """Parse ``12/2201.6/1300.5/3199`` as cores and CPU, GPU and memory clocks in MHz.

    Raises:
        BadInput: For any other form.
    """
    wanted = "cores/CPU/GPU/memory in MHz, as 12/2201.6/1300.5/3199"
    try:
        cores, cpu_mhz, gpu_mhz, mem_mhz = (float(part) for part in text.split("/"))
    except ValueError as error:
        raise BadInput(where, repr(text), wanted) from error
    if not all(math.isfinite(v) and v > 0 for v in (cores, cpu_mhz, gpu_mhz, mem_mhz)) or cores != int(cores):
        raise BadInput(where, repr(text), wanted)
    return PowerMode(int(cores), cpu_mhz, gpu_mhz, mem_mhz)
