"""BoFL as a baseline: a board probes modes at random, then by Bayesian optimisation, then mixes the best modes seen.

As published: 1 % of the modes at random, each for about 5 s, and back at full speed in time for the deadline; then two
Gaussian processes and the expected improvement of the hypervolume until more than 3 % of the modes are seen and a round
gains less than 1 %; from then on the mix of observed modes of least energy within the deadline. Where the paper leaves
something open, this implementation mostly decides in its favour; comments say where.
Symbols: y = ln (seconds, joules) per step, independently normal with mean m and standard deviation s for a mode not yet
seen; (a_1, b_1) .. (a_k, b_k) the front seen so far, a ascending, and r its reference point, worse in both. With
a_0 = -inf, b_0 = r_b, a_k+1 = r_a the area that y would add splits into stripes, each a product, so that its
expectation is

    sum_i=0..k  [psi_a(a_i+1) - psi_a(a_i)] psi_b(b_i),  psi(c) = E max(c - y, 0) = s phi(z) + (c - m) Phi(z),

z = (c - m) / s.

References:
    Guo et al., "BoFL: Bayesian optimized local training pace control for energy efficient federated learning",
    Middleware 2022. Expected improvement of the hypervolume: Emmerich et al., CEC 2011; Yang et al., Journal of Global
    Optimization 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from fedge.decisions.mode_mix import find_best_split
from fedge.pareto import front_mask
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.gaussian_process import GaussianProcessPredictor
from fedge.seeds import make_generator
from fedge.types import Floats, Measurement, Modes

RANDOM_SHARE = 0.01
"""Share of the modes that is probed at random first (the paper's)."""
MIN_TRIED_SHARE = 0.03
"""Bayesian optimisation continues until more than this share of the modes is seen ..."""
MIN_HYPERVOLUME_GAIN = 0.01
"""... and a round with probes adds less than this share to the hypervolume (both the paper's)."""
PROBE_S = 5.0
"""Duration of a probe in seconds (the paper's)."""
PROBE_SHARE = 0.15
"""Upper limit of a probe's duration as a share of the round's time, a default for rounds shorter than the paper's."""
MIN_RANDOM_MODES = 3
"""Least number of modes probed at random, for small tables: the reference point needs some variation."""

StepRunner = Callable[[int, int], Measurement]
"""Run a number of steps in the mode of a row and return their measurement. Arguments: row, steps."""


class BoflPhase(Enum):
    """The phases of BoFL, in their order."""

    RANDOM = auto()
    IMPROVING = auto()
    MIXING = auto()


@dataclass(slots=True)
class _RoundProgress:
    """A round in progress: steps and seconds left, the duration of a probe in seconds, and the parts done."""

    left: int
    room_s: float
    trial_s: float
    parts: list[Measurement] = field(default_factory=list)

    def add(self, part: Measurement) -> None:
        self.parts.append(part)
        self.left -= part.steps
        self.room_s -= part.work_s


class BoflClient:
    """A client that follows BoFL; it knows its modes, the row of the top mode, and the measurements of its runs.

    Not from the paper: a probe's figures are exact whatever its length, as for every policy of the study, and
    optimisation costs neither time nor energy.
    """

    def __init__(self, modes: Modes, top: int, run: StepRunner, seed: int) -> None:
        count = min(max(MIN_RANDOM_MODES, math.ceil(RANDOM_SHARE * len(modes))), len(modes) - 1)
        others = np.delete(np.arange(len(modes)), top)
        self.phase = BoflPhase.RANDOM
        self._modes, self._top, self._run = modes, top, run
        self._at_random = [int(row) for row in make_generator(seed, "bofl").permutation(others)[:count]]
        self._knowledge = PriorKnowledge(modes[top], seed=seed)
        self._seen: dict[int, Measurement] = {}
        self._reference = np.zeros(2)
        self._volume = 0.0

    @property
    def tried_count(self) -> int:
        """Number of modes probed so far."""
        return len(self._seen)

    def run_round(self, steps: int, deadline_s: float) -> tuple[Measurement, ...]:
        """Run one round, probes first.

        Returns:
            The measurements of the round's parts, in their order.
        """
        course = _RoundProgress(steps, deadline_s, min(PROBE_S, PROBE_SHARE * deadline_s))
        before = self.tried_count
        if not self._seen:
            # The top mode is the fallback of every later decision, so its step time must be known first.
            self._probe(self._top, course)
        proposals = self._propose_rows()
        while self._has_time_for_probe(course) and (row := next(proposals, None)) is not None:
            self._probe(row, course)
        self._run_remaining_steps(course)
        self._advance_phase(tried=self.tried_count > before)
        return tuple(course.parts)

    def _propose_rows(self) -> Iterator[int]:
        """Yield the rows to probe in a round; the processes are refitted between rounds only (open in the paper)."""
        if self.phase is BoflPhase.RANDOM:
            while self._at_random:
                yield self._at_random.pop()
        elif self.phase is BoflPhase.IMPROVING:
            mean, sd = self._predict_log_costs()
            while self.tried_count < len(self._modes):
                gain = expected_hypervolume_gain(mean, sd, self._log_costs(), self._reference)
                gain[list(self._seen)] = -np.inf
                yield int(np.argmax(gain))

    def _has_time_for_probe(self, course: _RoundProgress) -> bool:
        """Return whether a probe leaves the time to end the round at full speed.

        A probe's first step is assumed to last as long as the probe should, or as the slowest step seen.
        """
        if course.left == 0:
            return False
        slowest_s = max(one.step_s for one in self._seen.values())
        return max(course.trial_s, slowest_s) + (course.left - 1) * self._fastest.step_s <= course.room_s

    def _probe(self, row: int, course: _RoundProgress) -> None:
        """Run as many steps as end within a probe's duration, at least one."""
        self._seen[row] = self._run(row, 1)
        steps = min(int(course.trial_s / self._seen[row].step_s), course.left)
        course.add(self._run(row, max(1, steps)))

    def _run_remaining_steps(self, course: _RoundProgress) -> None:
        """Run the rest at full speed in the random phase, else in the best mix of the modes seen."""
        if course.left == 0:
            return
        rows, (step_s, step_j) = list(self._seen), np.exp(self._log_costs()).T
        split = find_best_split(step_s, step_j, course.left, course.room_s)
        if self.phase is BoflPhase.RANDOM or split is None:
            course.add(self._run(rows[int(np.argmin(step_s))], course.left))
            return
        if split.steps:
            course.add(self._run(rows[split.slow], split.steps))
        course.add(self._run(rows[split.fast], course.left))

    def _advance_phase(self, *, tried: bool) -> None:
        """Move on to the next phase if the present one is complete."""
        logs = self._log_costs()
        if self.phase is BoflPhase.RANDOM and not self._at_random:
            # The paper leaves the reference point open: here it is the worst of the random probes in both objectives.
            self.phase, self._reference = BoflPhase.IMPROVING, logs.max(axis=0)
            self._volume = compute_hypervolume(logs, self._reference)
        elif self.phase is BoflPhase.IMPROVING and tried:
            before, self._volume = self._volume, compute_hypervolume(logs, self._reference)
            if (
                self.tried_count > MIN_TRIED_SHARE * len(self._modes)
                and self._volume - before <= MIN_HYPERVOLUME_GAIN * before
            ):
                self.phase = BoflPhase.MIXING

    @property
    def _fastest(self) -> Measurement:
        return min(self._seen.values(), key=lambda one: one.step_s)

    def _log_costs(self) -> Floats:
        """Return the logs of seconds and joules per step of the modes seen, shape (seen, 2)."""
        return np.log([(one.step_s, one.step_s * one.power_w) for one in self._seen.values()])

    def _predict_log_costs(self) -> tuple[Floats, Floats]:
        """Return means and standard deviations of the two logs for all modes, shape (modes, 2) each."""
        # The power field carries joules here: the second process learns the log of any positive quantity.
        told = [Measurement(one.mode, 1, one.step_s, one.step_s * one.power_w) for one in self._seen.values()]
        predicted = GaussianProcessPredictor(self._knowledge).fit(told).predict(self._modes)
        mean = np.log(np.column_stack([predicted.step_s, predicted.power_w]))
        return mean, np.column_stack([predicted.step_s_sd_log, predicted.power_w_sd_log])


def compute_hypervolume(points: Floats, reference: Floats) -> float:
    """Return the area between ``points`` and ``reference``, both objectives minimised.

    Args:
        points: Objectives, shape (n, 2); points that do not beat the reference add nothing.
        reference: The reference point, shape (2,).
    """
    a, b = _build_stripes(points, reference)
    return float(np.sum((a[2:] - a[1:-1]) * (reference[1] - b[1:])))


def expected_hypervolume_gain(mean: Floats, sd: Floats, points: Floats, reference: Floats) -> Floats:
    """Return the hypervolume that each candidate is expected to add to ``points``; shape (candidates,).

    Args:
        mean: Means of independent normal objectives, shape (candidates, 2).
        sd: Their standard deviations, above 0, shape (candidates, 2).
        points: Objectives seen so far, shape (n, 2).
        reference: The reference point, shape (2,).

    References:
        Emmerich et al., CEC 2011; Yang et al., Journal of Global Optimization 2019.
    """
    a, b = _build_stripes(points, reference)
    upto = _expected_shortfall(a[None, 1:], mean[:, :1], sd[:, :1])
    widths = np.diff(upto, axis=1, prepend=0.0)
    gain: Floats = (widths * _expected_shortfall(b[None, :], mean[:, 1:], sd[:, 1:])).sum(axis=1)
    return gain


def _build_stripes(points: Floats, reference: Floats) -> tuple[Floats, Floats]:
    """Return the edges a_0 .. a_k+1 of the stripes and their tops b_0 .. b_k, without points beyond the reference."""
    kept = points[(points < reference).all(axis=1)]
    front = kept[front_mask(kept[:, 0], kept[:, 1])]
    front = front[np.argsort(front[:, 0])]
    return np.concatenate([[-np.inf], front[:, 0], reference[:1]]), np.concatenate([reference[1:], front[:, 1]])


def _expected_shortfall(limit: Floats, mean: Floats, sd: Floats) -> Floats:
    """Return psi, the expectation of how far a normal variable is below ``limit``, with 0 where it is above."""
    z = (limit - mean) / sd
    value: Floats = sd * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) + (limit - mean) * 0.5 * _erfc(-z / math.sqrt(2))
    return value


def _erfc(x: Floats) -> Floats:
    return np.array([math.erfc(value) for value in x.ravel().tolist()]).reshape(x.shape)
