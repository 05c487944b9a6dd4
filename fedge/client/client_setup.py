"""A client before a round, and the building of its round: the same for emulated and real boards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from fedge.client.corrections import Correction, predict_corrected
from fedge.client.evidence import build_offer, select_consistent_peers, select_recalled
from fedge.client.inference_service import (
    ExpectedService,
    RoundService,
    ServiceCorrection,
    choose_serving_wait_mode,
    plan_round_service,
)
from fedge.client.loader_stalls import LoaderCorrection, LoaderModel
from fedge.client.memory_scaling import (
    ScaleAttempt,
    ScaleCorrection,
    ScalingContext,
    build_narrow_offers,
    count_steps_at,
    measurement_scale,
    previous_scale,
)
from fedge.client.prediction_requests import Asking
from fedge.client.round import begin_round
from fedge.client.round_state import RoundContext, RoundState, no_time_limit, warm_up_steps
from fedge.decisions.planning import is_pinned
from fedge.decisions.policies import choose_waiting_mode, is_builtin_policy, load_policy
from fedge.devices.board_kinds import NetworkLink
from fedge.experiment import ExplorationSpec, FleetBoard
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.explorers import load_explorer
from fedge.protocols import Device, Predictor, Training
from fedge.telemetry.progress_files import SILENT_REPORTER, ProgressReporter
from fedge.types import DeviceSpec, Front, LinkUse, Modes, PowerMode, RoundGoal, TrainingScale, Workload
from fedge.wire import ClientState, RequestMessage

PROBE_EXPLORER = "active"
"""Name of the explorer that proposes a client's first probes."""
POWER_PLANNING_POLICY = "fastest"
"""Name of the policy that plans with the clients' power, for which fronts must include the modes of low power."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientSetup:
    """A client as it is known before a round.

    Attributes:
        workload: Work of one step at the requested scale.
        candidates: Modes that may be chosen, including the board's presets.
        predictor: Predictor in the reference condition of ``fedge.client.prediction_requests``.
        steps: Steps per round at the requested scale.
        model_bytes: Size of the model whose steps are priced, which an emulated link moves; None for the size of the
            model that is trained.
        scaling: Memory and scaling options; None if the memory need of a step is unknown.
    """

    board: FleetBoard
    spec: DeviceSpec
    workload: Workload
    exploration: ExplorationSpec
    candidates: Modes
    fastest_mode: PowerMode
    knowledge: PriorKnowledge
    predictor: Predictor
    steps: int
    samples: int
    link: NetworkLink
    model_bytes: float | None = None
    service: ExpectedService | None = None
    loader: LoaderModel | None = None
    scaling: ScalingContext | None = None

    def steps_at(self, scale: TrainingScale | None) -> int:
        """Return the steps that cover the client's samples at a scale; None stands for the requested one."""
        if scale is None or self.scaling is None:
            return self.steps
        return count_steps_at(self.steps, self.scaling.requested, scale)

    def round_steps(self, request: RequestMessage, scale: TrainingScale | None) -> int:
        """Return the steps of the requested round at a scale: as many of the whole share as the goal asks for."""
        share = 1.0 if request.goal is None else request.goal.share
        return self.steps_at(scale) if share == 1.0 else max(1, round(share * self.steps_at(scale)))

    def rule_out_narrowing(self) -> ClientSetup:
        """Return the client whose worker cannot narrow the network, whatever its fleet entry says."""
        assert self.scaling is not None
        return dataclasses.replace(self, scaling=dataclasses.replace(self.scaling, width=1.0, can_narrow=lambda: False))

    def limit_width(self, request: RequestMessage) -> ClientSetup:
        """Return the client for a round in which it trains no wider network than the goal asks for."""
        width = 1.0 if request.goal is None or request.state.whole_only else request.goal.width
        if self.scaling is None or width >= self.scaling.width:
            return self
        return dataclasses.replace(self, scaling=self.scaling.limit_width(width))

    def offer_narrow(self, front: Front, attempt: ScaleAttempt | None, state: ClientState) -> Front:
        """Return a front at the scale of an attempt, with its width and what narrower networks cost."""
        if self.scaling is None or attempt is None or not self.scaling.is_width_planned:
            return front
        offers = build_narrow_offers(self.scaling, attempt, state)
        return dataclasses.replace(front, narrow=offers, width=attempt.scale.width)

    def plan_transfer(self, request: RequestMessage, scale: TrainingScale | None) -> LinkUse:
        """Return the use of the link in the next round: a plan of widths sends a client only what it trains."""
        if self.scaling is None or scale is None or not self.scaling.is_width_planned:
            return self.transfer(request, scale)
        narrow = dataclasses.replace(self, scaling=self.scaling.limit_width(scale.width))
        return narrow.transfer(request, scale)

    def transfer(self, request: RequestMessage, scale: TrainingScale | None) -> LinkUse:
        """Return the use of the link in a round at a scale.

        A client receives the widest network that it may train, and sends the one that it trained.
        """
        whole_bytes = request.model_bytes if self.model_bytes is None else self.model_bytes
        received = sent = 1.0
        if self.scaling is not None:
            received, sent = map(self.scaling.parameter_share, (self.scaling.asked_scale, scale))
        return self.link.transfer(received * whole_bytes, sent * whole_bytes, request.up_share)


@dataclass(frozen=True, slots=True, eq=False)
class RoundConditions:
    """The conditions of a round, on which its device depends.

    Attributes:
        attempt: Training scale to try; None if the memory need of a step is unknown.
        scale: That scale, or None if it is the requested one.
        corrections: Differences from the predictor's reference condition, the outermost first.
    """

    request: RequestMessage
    attempt: ScaleAttempt | None
    scale: TrainingScale | None
    waiting_mode: PowerMode
    service: RoundService | None
    corrections: tuple[Correction, ...]

    @property
    def lost_s(self) -> float:
        """Return the seconds of this round that attempts which ran out of memory took before it."""
        return 0.0 if self.attempt is None else self.attempt.lost_s


DeviceOpener = Callable[[RoundConditions], Device]
"""Prepares the board for a round."""


def plan_conditions(setup: ClientSetup, request: RequestMessage, attempt: ScaleAttempt | None) -> RoundConditions:
    """Plan the conditions of a round at the training scale of an attempt."""
    scale = None if attempt is None else measurement_scale(setup.scaling, attempt.scale)
    corrections, service = _list_corrections(setup, request, scale)
    return RoundConditions(
        request,
        attempt=attempt,
        scale=scale,
        waiting_mode=_choose_waiting_mode(setup, request.policy, service),
        service=service,
        corrections=corrections,
    )


def build_round(
    setup: ClientSetup,
    conditions: RoundConditions,
    device: Device,
    reporter: ProgressReporter = SILENT_REPORTER,
    time_left_s: Callable[[], float | None] = no_time_limit,
) -> RoundContext:
    """Build the context of a round.

    Args:
        time_left_s: Returns the seconds of wall time for which the reply still counts, or None without a limit.
    """
    request, scale, workload = conditions.request, conditions.scale, setup.workload
    return RoundContext(
        setup.board.name,
        device=device,
        predictor=setup.predictor,
        policy=load_policy(request.policy),
        policy_reads_points=not is_builtin_policy(request.policy),
        workload=workload if scale is None else dataclasses.replace(workload, batch_size=scale.batch_size),
        candidates=setup.candidates,
        fastest_mode=setup.fastest_mode,
        waiting_mode=conditions.waiting_mode,
        exploration=setup.exploration,
        make_explorer=lambda modes: load_explorer(PROBE_EXPLORER, modes, setup.knowledge),
        step_budgets_s=_comparable_step_budgets_s(setup, conditions),
        includes_low_power=request.policy == POWER_PLANNING_POLICY,
        corrections=conditions.corrections,
        scale=scale,
        lost_s=conditions.lost_s,
        learns=not is_pinned(request.policy),
        keeps_peers=request.keeps_peers,
        gives_back=request.gives_back,
        reporter=reporter,
        time_left_s=time_left_s,
    )


def _list_corrections(
    setup: ClientSetup, request: RequestMessage, scale: TrainingScale | None
) -> tuple[tuple[Correction, ...], RoundService | None]:
    """Return the corrections of a round, the outermost first, and the plan of its service."""
    inner = list[Correction]()
    if setup.loader is not None:
        inner.append(
            LoaderCorrection(setup.loader if scale is None else setup.loader.with_batch_size(scale.batch_size))
        )
    if setup.scaling is not None:
        inner.append(ScaleCorrection(setup.scaling, scale))
    if setup.service is None:
        return tuple(inner), None
    preset = choose_waiting_mode(request.policy, setup.spec, setup.candidates)
    service = plan_round_service(
        setup.service,
        lambda measurements: predict_corrected(setup.predictor, inner, setup.candidates, measurements),
        own_measurements=(*request.recalled, *request.state.measurements),
        fastest_mode=setup.fastest_mode,
        other_modes=(preset,) if request.policy.startswith("preset:") else (),
    )
    return (ServiceCorrection(service), *inner), service


def _choose_waiting_mode(setup: ClientSetup, policy: str, service: RoundService | None) -> PowerMode:
    if setup.service is None or service is None:
        return choose_waiting_mode(policy, setup.spec, setup.candidates)
    return choose_serving_wait_mode(service, policy, setup.spec, setup.service.idle_w)


def _comparable_step_budgets_s(setup: ClientSetup, conditions: RoundConditions) -> tuple[float, ...]:
    """Return the step budgets of earlier rounds, or none if they were at another scale."""
    state, attempt = conditions.request.state, conditions.attempt
    if setup.scaling is None or attempt is None or attempt.scale == previous_scale(setup.scaling, state):
        return state.allowed_s
    return ()


def begin_requested_round(
    setup: ClientSetup, request: RequestMessage, context: RoundContext, training: Training
) -> Asking[RoundState]:
    """Begin the round of a training request."""
    steps = setup.round_steps(request, context.scale)
    share = steps / setup.steps_at(context.scale)  # the goal's, rounded to whole steps
    goal = dataclasses.replace(request.goal or RoundGoal(request.policy, steps), steps=steps, share=share)
    state = yield from begin_round(
        context,
        goal=goal,
        measurements=request.state.measurements,
        link=setup.transfer(request, context.scale),
        training=training,
        peer_measurements=request.shared,
        recalled=request.recalled,
    )
    return state


def build_first_front(
    setup: ClientSetup, request: RequestMessage, attempt: ScaleAttempt | None, open_device: DeviceOpener
) -> Asking[Front]:
    """Build the front that a client offers before a round, from what the request knows of it."""
    conditions = plan_conditions(setup, request, attempt)
    context = build_round(setup, conditions, open_device(conditions))
    earlier = request.state.measurements
    recalled = yield from select_recalled(context, earlier, request.recalled)
    own_measurements = (*recalled, *earlier)
    peers = yield from select_consistent_peers(context, own_measurements, request.shared)
    front = yield from build_offer(
        context,
        own_measurements=own_measurements,
        peer_measurements=peers,
        steps=setup.steps_at(context.scale) + warm_up_steps(own_measurements),
        link=setup.plan_transfer(request, context.scale),
        used_again=request.keeps_peers and not peers,
    )
    return setup.offer_narrow(front, attempt, request.state)
