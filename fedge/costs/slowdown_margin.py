"""Margin on predicted slowdowns from MAXN, from the errors of the same prediction on other measured workloads.

Symbols: r(m) the log of a mode's predicted time over MAXN's; d_i the log time parameters of calibrated profile i minus
those that are predicted for it without what is left out; r_i(m) the slowdown if the wanted workload's parameters are
off by d_i. The spread is s(m)^2 = sum_i w_i (r_i(m) - r(m))^2, where a workload on a board is one case and its batch
sizes share the case's weight. Of n cases the margin is t_n(p) s(m), with t_n(p) the one-sided quantile of Student's t.

A margin per mode leaves a choice of modes whose slowdown does not depend on what is uncertain. With one margin for all,
from the slowdowns of the cases' chosen modes, networks of a new family save 7 % of the oracle's energy instead of 32 %
in ``fedge study transfer --part layers``, and known families 13 % instead of 36 %; both keep their promise in 95 %.
Near the limit most of the spread is that of preprocessing, its scaling with the cores, and launches (1 to 20 % of the
slowdown); the errors of arithmetic and memory traffic on the GPU mostly add less than 1.5 %, so that finer rates by
kind of layer would not narrow it. A quantile without a normal distribution, as in conformal prediction, needs 19 cases
for 95 %, and there are 9. The scatter of single measured rows is not in the margin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedge.confidence_interval import student_t
from fedge.costs.cost_priors import cost_at_batch_size
from fedge.costs.cost_profile import CostProfile
from fedge.costs.gpu_rates import RateObservation
from fedge.costs.layer_estimate import estimate_network_cost
from fedge.costs.layered_work import build_profile_batch, find_family
from fedge.errors import BadInput
from fedge.physics.time_power_model import Coefficients, compute_step_s
from fedge.types import DeviceSpec, Floats, Modes, PowerMode, Workload

LeftOut = Literal["workload", "board", "family", "batch"]
"""What a rotation leaves out with a case: every profile of it is hidden from the prediction."""


@dataclass(frozen=True, slots=True, eq=False)
class CostEvidence:
    """Calibrated profiles, timed steps and data sheets by board name, from which costs are predicted."""

    calibrated: Sequence[CostProfile]
    timed: Sequence[RateObservation]
    specs: Mapping[str, DeviceSpec]

    def predict(self, device: DeviceSpec, work: Workload) -> CostProfile:
        """Predict a workload with layers: between its own batch sizes of inference if there are any, else by them.

        Raises:
            BadInput: There is no profile of the same kind to start from.
        """
        own = self._list_own_batches(device, work)
        if own:
            try:
                return cost_at_batch_size(own, work.batch_size)
            except BadInput:  # too far from every batch size that was measured
                pass
        return estimate_network_cost(device, work, self.specs, calibrated=self.calibrated, timed=self.timed)

    def _list_own_batches(self, device: DeviceSpec, work: Workload) -> list[CostProfile]:
        """Return the profiles of inferring the same network on the board, ascending in batch size."""
        here = [p for p in self.calibrated if p.device == device.name and p.kind == work.kind == "infer"]
        batches = [(p, build_profile_batch(p)) for p in here]
        same = [p for p, batch in batches if batch and work.layers and batch.layers.counted == work.layers.counted]
        return sorted(same, key=lambda p: p.batch_size)

    def find_left_out(self, device: DeviceSpec, work: Workload) -> LeftOut:
        """Return what a workload with layers is to this evidence: its rotation leaves out as much."""
        if self._list_own_batches(device, work):
            return "batch"
        alike = [p for p in self.calibrated if p.kind == work.kind]
        if all(p.device != device.name for p in alike):
            return "board"
        networks = [batch.layers.network for batch in map(build_profile_batch, alike) if batch is not None]
        family = find_family(work.layers.network) if work.layers else work.name
        return "workload" if family in map(find_family, networks) else "family"

    def leave_out(self, case: CostProfile, network: str, left_out: LeftOut) -> CostEvidence:
        """Return the evidence without a case and all that shares with it what is left out."""
        if left_out == "batch":
            return replace(self, calibrated=[p for p in self.calibrated if p is not case])

        def is_hidden(device: str, of: str) -> bool:
            if left_out == "board":
                return device == case.device
            return left_out == "family" and find_family(of) == find_family(network)

        kept = [
            profile
            for profile in self.calibrated
            if profile.workload != case.workload and not is_hidden(profile.device, _name_network(profile))
        ]
        timed = [t for t in self.timed if t.network != network and not is_hidden(t.device, t.network)]
        return replace(self, calibrated=kept, timed=timed)


def _name_network(profile: CostProfile) -> str:
    batch = build_profile_batch(profile)
    return profile.workload if batch is None else batch.layers.network


@dataclass(frozen=True, slots=True, eq=False)
class PredictionErrors:
    """Errors of log time parameters of the cases of a rotation.

    Attributes:
        cases: Number n of workloads on boards.
        offsets: Errors d_i, shape (profiles, parameters).
        weights: Weights w_i, shape (profiles,), with the sum 1.
        left_out: What was left out with each case.
    """

    cases: int
    offsets: Floats
    weights: Floats
    left_out: LeftOut

    def compute_margin(
        self, cost: CostProfile, top: PowerMode, modes: Modes, maxn_row: int, confidence: float
    ) -> Floats:
        """Return the margin on log slowdowns of a predicted cost, shape (modes,); infinite without a case.

        Args:
            cost: The predicted cost.
            top: The board's top mode.
            modes: The n modes.
            maxn_row: Row of MAXN.
            confidence: Probability, at least 0.5, with which a mode keeps its slowdown.
        """
        predicted = _slowdown_log(cost.coefficients, top, modes, maxn_row)
        squares = np.zeros_like(predicted)
        for offset, weight in zip(self.offsets, self.weights, strict=True):
            shifted = replace(cost.coefficients, time=cost.coefficients.time + offset)
            squares += weight * (_slowdown_log(shifted, top, modes, maxn_row) - predicted) ** 2
        if not self.cases:
            return np.full_like(predicted, np.inf)
        return compute_margin_t(self.cases, confidence) * np.sqrt(squares)


def compute_margin_t(cases: int, confidence: float) -> float:
    """Return the one-sided quantile t_n(p) of Student's t for n cases.

    Raises:
        BadInput: If the confidence is not from 0.5 to below 1.
    """
    if not 0.5 <= confidence < 1.0:
        raise BadInput("--confidence", f"{confidence:g}", "a number from 0.5 to below 1, as 0.95")
    return student_t(cases, 2.0 * confidence - 1.0)


def _slowdown_log(coefficients: Coefficients, top: PowerMode, modes: Modes, maxn_row: int) -> Floats:
    step_s = np.log(compute_step_s(coefficients, top, modes))
    return np.asarray(step_s - step_s[maxn_row])


def rotate_predictions(evidence: CostEvidence, left_out: LeftOut) -> PredictionErrors:
    """Predict every calibrated profile without what is left out with it, and return the errors.

    Profiles that cannot be predicted from what remains are no cases.
    """
    found = [
        (profile, offset) for profile in evidence.calibrated for offset in _find_offsets(evidence, profile, left_out)
    ]
    names = [(profile.device, profile.workload, profile.kind) for profile, _ in found]
    weights = np.array([1.0 / names.count(name) for name in names])
    cases = len(set(names))
    return PredictionErrors(
        cases, np.array([offset for _, offset in found]), weights / max(cases, 1), left_out=left_out
    )


def _find_offsets(evidence: CostEvidence, profile: CostProfile, left_out: LeftOut) -> Iterator[Floats]:
    """Yield the error of the prediction of one profile, if there is one."""
    batch = build_profile_batch(profile)
    if batch is None or (left_out == "batch" and profile.kind == "train"):
        return
    rest = evidence.leave_out(profile, batch.layers.network, left_out)
    work = Workload(profile.workload, profile.batch_size, profile.kind, batch.layers)
    try:
        cost = rest.predict(evidence.specs[profile.device], work)
    except BadInput:
        return
    yield profile.coefficients.time - cost.coefficients.time
