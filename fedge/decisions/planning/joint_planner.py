"""The planner of the policy ``joint``: who takes part, with which steps, encoding and network width, and until when.

Symbols as in ``joint_search`` and ``progress_model``. A client's weight w_i is its gain among the clients offered
(``planner_selector.compute_gains``), all of one loss: its samples, and a term that grows while it waits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import format_figure
from fedge.decisions.planning.fleet_planners import (
    TIME_WEIGHT,
    find_equal_share_w,
    set_deadline,
    set_power_shares,
)
from fedge.decisions.planning.front_columns import FrontColumns, build_columns
from fedge.decisions.planning.joint_search import JointLimits, JointProblem, JointSolution, solve_joint
from fedge.decisions.planning.progress_model import (
    NO_ROUNDS,
    ProgressFit,
    ProgressShape,
    find_shape,
    step_worth,
    width_worth,
)
from fedge.types import NOT_COMPRESSED, Compression, FleetPlan, Floats, Front, NarrowOffer, RoundGoal

SHARES = (0.25, 0.5, 1.0, 1.5, 2.5, 4.0)
"""Shares of a client's steps to choose from: finer ones gain little, since h is flat between them. In
benchmarks/local_steps.py four times the steps take fewer rounds than twice, also of unlike (non-IID) data."""
NARROW_SHARES = (1.0, 2.0)
"""The same for narrow networks: fewer, so that a plan for 10,000 clients stays below 2 s (planner_speed.py)."""
MIN_PROGRESS = 0.9
"""Least progress of a round relative to one of whole shares of all clients, unless the policy gives another: in the
quickstart (docs/explanation/joint.md) less costs final accuracy, more costs time."""
SENT = {"none": 1.0, "fp16": 1.0, "int8": 1.0, "topk": 0.75}
"""Part q of an update's progress that arrives by encoding, as benchmarks/local_steps.py finds it; top-k is late."""

WIDE_WEIGHT = 0.5
"""Least weight of the clients that are never asked for a narrow network, the fastest ones: channels that hardly anybody
trains spoil the whole network, as benchmarks/local_steps.py shows of six narrow clients in eight."""
WHOLE_NETWORK = NarrowOffer(1.0, work=1.0, sent=1.0)
"""The whole network as an offer; stands for a width that a client does not offer, too."""


@dataclass(frozen=True, slots=True)
class UpdateEncoding:
    """An encoding of updates that may be chosen, and its bytes relative to the model's."""

    compression: Compression = NOT_COMPRESSED
    up_share: float = 1.0


WHOLE_UPDATE = UpdateEncoding()


@dataclass(frozen=True, slots=True)
class BoardSupply:
    """Where a board's energy comes from.

    Attributes:
        price: Price or carbon of its energy now, relative to the signal's mean.
        spare_j: Joules above the floor of its battery; infinite on mains.
        full_j: The same of the full battery.
        charging_w: Power that charges it.
    """

    price: float = 1.0
    spare_j: float = np.inf
    full_j: float = np.inf
    charging_w: float = 0.0


MAINS = BoardSupply()


@dataclass(frozen=True, slots=True)
class JointContext:
    """The input of the plan beyond the fronts.

    Attributes:
        weights: Each client's weight, positive; clients that are not named count as the mean.
        encodings: Encodings to choose from.
        fit: What earlier rounds showed of progress.
        widths: Shares of the network's channels, below 1, that clients which offer them may be asked to train.
        supplies: Supplies of the clients; those that are not named are on mains at the mean price.
        resting_price: Price of what the other boards draw, relative to the signal's mean.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    encodings: tuple[UpdateEncoding, ...] = (WHOLE_UPDATE,)
    fit: ProgressFit = NO_ROUNDS
    widths: tuple[float, ...] = ()
    supplies: Mapping[str, BoardSupply] = field(default_factory=dict)
    resting_price: float = 1.0


PLAIN_CONTEXT = JointContext()


@dataclass(frozen=True, slots=True)
class WorkOption:
    """A column of the problem: a share of the steps, an encoding, and the share of the channels that is trained."""

    share: float
    encoding: UpdateEncoding
    width: float = 1.0


def plan_joint(
    fronts: Mapping[str, Front], boards: Sequence[str], goal: RoundGoal, context: JointContext = PLAIN_CONTEXT
) -> FleetPlan:
    """Plan the parts of least w D / D_maxn + (1 - w) E / E_maxn per expected progress, with E at its price.

    Clients without a usable front take part with their whole share, so that they become known. Under a limit on watts
    each of them has an equal share, and the others have what is left. If no battery has enough for any part, the plan
    has no goals, but says how long to wait.

    Args:
        fronts: The known fronts by board.
        boards: The boards of the round.
        goal: The round's goal; its limits may hold ``time_weight`` (0.5), ``min_progress`` (0.9), ``deadline_s``,
            ``round_energy_j`` and ``fleet_power_w``.
        context: Weights, encodings, widths and the model of progress.
    """
    columns = build_columns({board: fronts[board] for board in boards if board in fronts}, 0.0)
    whole, equal_w = dict.fromkeys(boards, goal), find_equal_share_w(boards, goal)
    if not columns.boards:
        return set_power_shares(FleetPlan(whole, why="No board's front is known."), {}, equal_w)
    known = [fronts[board] for board in columns.boards]
    options = list_options(context)
    problem = build_problem(columns, known, options=options, context=context, goal=goal)
    found = solve_joint(problem, _read_limits(goal, None if equal_w is None else equal_w * len(columns)))
    if not (problem.value > 0.0).any():
        return set_power_shares(FleetPlan(whole, why="No part of any board is worth anything."), {}, equal_w)
    unknown = {board: goal for board in boards if board not in set(columns.boards)}
    need_j = compute_least_charge_j(problem)
    low = np.flatnonzero(need_j > problem.spare_j)
    flat = f" Without the charge for any part: {len(low)}." if len(low) else ""
    if found is None:
        # Not only of ``low``: a large fleet's deadlines are a grid, which may pass over what a battery just covers.
        limited = np.flatnonzero(np.isfinite(problem.spare_j))
        supplies = [(context.supplies[columns.boards[i]], float(need_j[i]), float(columns.idle_w[i])) for i in limited]
        wait_s = None if unknown else min(starmap(_compute_wait_s, supplies), default=math.inf)
        return set_power_shares(FleetPlan(unknown, wait_s=wait_s, why=flat.strip()), {}, equal_w)
    done = set_deadline(goal, found.deadline_s, found.feasible)
    working = np.flatnonzero(found.option >= 0).tolist()
    goals = {columns.boards[i]: _build_goal(done, options[found.option[i]], known[i].width) for i in working}
    plan = _build_plan(goals, found, offered=len(columns), unknown=unknown, maxn=compute_maxn_round(columns, known))
    plan = dataclasses.replace(plan, why=plan.why + flat)
    shares_w = {columns.boards[i]: float(problem.power_w[i, found.mode[i]]) for i in working}
    return set_power_shares(plan, shares_w, equal_w)


def compute_least_charge_j(problem: JointProblem) -> Floats:
    """Return the joules that each client's part of least energy takes from a battery, shape (n,); 0 on mains."""
    need_j = np.zeros(len(problem.spare_j))
    for i in np.flatnonzero(np.isfinite(problem.spare_j)):
        offered, modes = problem.value[i] > 0.0, np.isfinite(problem.work_s[i])
        scale = problem.scale[i, offered, None]
        ends_s = problem.fixed_s[i, offered, None] + scale * problem.work_s[i, modes]
        above_j = problem.fixed_j[i, offered, None] + scale * problem.above_j[i, modes]
        need_j[i] = np.min(above_j + problem.drain_w[i] * ends_s, initial=np.inf)
    return need_j


def _compute_wait_s(supply: BoardSupply, need_j: float, idle_w: float) -> float:
    """Return the whole seconds of idling after which a battery has more than ``need_j``; infinity for never."""
    gain_w = supply.charging_w - idle_w
    if gain_w <= 0.0 or need_j >= supply.full_j:
        return math.inf
    return max(1.0, math.floor((need_j - supply.spare_j) / gain_w) + 1.0)


def list_options(context: JointContext) -> list[WorkOption]:
    """Return the columns of the problem.

    What ``topk`` left out of an update of one width cannot be added to one of another, so that it is for whole ones.
    """
    return [
        WorkOption(share, encoding, width)
        for width in (1.0, *context.widths)
        for encoding in context.encodings
        if width == 1.0 or encoding.compression.kind != "topk"
        for share in (SHARES if width == 1.0 else NARROW_SHARES)
    ]


def build_problem(
    columns: FrontColumns,
    fronts: Sequence[Front],
    options: Sequence[WorkOption],
    context: JointContext,
    goal: RoundGoal,
) -> JointProblem:
    """Build the arrays of the search from the fronts in the order of ``columns``."""
    sent = [SENT[option.encoding.compression.kind] for option in options]
    shape, shares = find_shape(context.fit), np.array([option.share for option in options])
    worth = np.array([step_worth(share, shape) for share in shares.tolist()]) * sent
    usual = float(np.mean(list(context.weights.values()))) if context.weights else 1.0
    weights = np.array([context.weights.get(board, usual) for board in columns.boards])
    offers = {option.width: [_find_offer(front, option.width) for front in fronts] for option in options}
    work = np.array([[offer.work for offer in offers[option.width]] for option in options]).T
    worth_of = _value_widths(columns, offers, widest=[front.width for front in fronts], weights=weights, shape=shape)
    part_of = {width: [offer.sent for offer in of_width] for width, of_width in offers.items()}
    priced = {
        (width, encoding): _price_transfers(fronts, encoding, part_of[width])
        for width, encoding in {(option.width, option.encoding) for option in options}
    }
    transfers = np.array([priced[option.width, option.encoding] for option in options])
    fixed = np.array([front.fixed_share for front in fronts])
    weight = goal.limits.get("time_weight", TIME_WEIGHT)
    maxn_s, maxn_j = compute_maxn_round(columns, fronts)
    work_s, above_j, power_w = _pad_modes(columns)
    supplies = [context.supplies.get(board, MAINS) for board in columns.boards]
    price, spare_j, charging_w = np.array([(one.price, one.spare_j, one.charging_w) for one in supplies]).T
    resting_w = goal.limits.get("resting_w", 0.0)
    return JointProblem(
        work_s,
        above_j,
        power_w,
        fixed_s=transfers[:, 0].T,
        fixed_j=transfers[:, 1].T,
        scale=work * (fixed[:, None] + (1.0 - fixed[:, None]) * shares),
        value=np.array([worth_of[option.width] for option in options]).T * worth,
        price=price,
        spare_j=spare_j,
        drain_w=np.where(np.isfinite(spare_j), np.maximum(0.0, columns.idle_w - charging_w), 0.0),
        idle_w=float(columns.idle_w.sum()) + resting_w,
        priced_idle_w=float((price * columns.idle_w).sum()) + context.resting_price * resting_w,
        time_price=weight / maxn_s,
        energy_price=(1.0 - weight) / max(maxn_j, 1e-12),
    )


def _value_widths(
    columns: FrontColumns,
    offers: Mapping[float, Sequence[NarrowOffer]],
    *,
    widest: Sequence[float],
    weights: Floats,
    shape: ProgressShape,
) -> dict[float, Floats]:
    """Return by width what each client's whole share of it is worth, shape (n,); 0 if it may not be asked for it.

    The sum over the clients is 1 if each trains as much of the network as it can: ``widest`` is below 1 where its
    memory or the fleet's entry says so.
    """
    can_whole = np.array(widest) == 1.0
    may_be_narrow = _may_be_narrow(columns, np.where(can_whole, weights, 0.0), WIDE_WEIGHT * weights.sum())
    worth_of = {}
    for width, of_width in offers.items():
        offered = np.array([offer.width == width for offer in of_width]) & (may_be_narrow | (width == 1.0))
        worth_of[width] = weights * offered * [width_worth(min(width, most), shape) for most in widest]
    whole = worth_of[1.0].sum()
    return {width: worth / whole for width, worth in worth_of.items()}


def compute_maxn_round(columns: FrontColumns, fronts: Sequence[Front]) -> tuple[float, float]:
    """Return seconds and joules of the round in which every client does its whole share at MAXN and sends all of it.

    Fronts that were offered with encoded updates give the same, so that the prices stay while the encodings change.
    """
    whole_s, radio_j = _price_transfers(fronts, WHOLE_UPDATE)
    round_s = float((whole_s + columns.maxn_work_s).max())
    waiting_j = columns.maxn_idle_w * (round_s - columns.maxn_work_s)
    return round_s, float((columns.maxn_work_j + radio_j + waiting_j).sum())


def _find_offer(front: Front, width: float) -> NarrowOffer:
    return next((offer for offer in front.narrow if offer.width == width), WHOLE_NETWORK)


def _may_be_narrow(columns: FrontColumns, wide: Floats, least: float) -> NDArray[np.bool_]:
    """Return which clients may be asked for a narrower network, (n,): the slowest, beyond ``least`` of the weight.

    Clients end in this order in a round of whole shares at MAXN.

    Args:
        wide: The weights of those that can train the whole network, 0 for the others.
        least: Weight that trains all channels.
    """
    order = np.argsort(columns.maxn_s, kind="stable")
    faster = np.cumsum(wide[order]) - wide[order]
    may = np.zeros(len(order), np.bool_)
    may[order] = faster >= least * (1.0 - 1e-9)
    return may


def _price_transfers(
    fronts: Sequence[Front], encoding: UpdateEncoding, sent: Sequence[float] = (1.0,)
) -> tuple[Floats, Floats]:
    """Return seconds and joules above idling of both transfers and of encoding, each of shape (n,).

    A front may have been offered with another encoding. Only bytes scale: latency stays, and encoding draws its own
    power instead of the radio's.

    Args:
        sent: Bytes of the model that each receives, and of its update before it is encoded, relative to the front's;
            one for all, or one each.
    """
    offered = [(f.link_s, f.radio_j, f.up_s, f.latency_s, f.up_share, f.encode_s, f.encode_j) for f in fronts]
    link_s, radio_j, up_s, latency_s, share, encode_s, encode_j = np.array(offered).T
    was_encoded, is_encoded = share != 1.0, encoding.up_share != 1.0
    sent_s = np.maximum(up_s - latency_s - was_encoded * encode_s, 0.0)
    received_s = np.maximum(link_s - up_s - latency_s, 0.0)
    part, waits_s = np.array(sent), 2.0 * latency_s
    radio_w = np.maximum(radio_j - was_encoded * encode_j, 0.0) / np.maximum(waits_s + received_s + sent_s, 1e-12)
    on_air_s = waits_s + part * (received_s + encoding.up_share * sent_s / share)
    return on_air_s + is_encoded * (part * encode_s), radio_w * on_air_s + is_encoded * (part * encode_j)


def _pad_modes(columns: FrontColumns) -> tuple[Floats, Floats, Floats]:
    """Return seconds, joules above idling and watts of the work per board and mode, padded with infinite seconds."""
    n, most = len(columns), int(columns.counts.max())
    board_of = np.repeat(np.arange(n), columns.counts)
    place = np.arange(len(board_of)) - columns.offsets[board_of]
    padded = [np.full((n, most), np.inf), np.zeros((n, most)), np.zeros((n, most))]
    link_s = (columns.maxn_s - columns.maxn_work_s)[board_of]
    work = (columns.ends_s - link_s, columns.above_idle_j - columns.radio_j[board_of], columns.power_w)
    for table, values in zip(padded, work, strict=True):
        table[board_of, place] = values
    work_s, above_j, power_w = padded
    return work_s, above_j, power_w


def _read_limits(goal: RoundGoal, power_w: float | None) -> JointLimits:
    limits = goal.limits
    return JointLimits(
        deadline_s=limits.get("deadline_s", np.inf),
        energy_j=limits.get("round_energy_j", np.inf),
        power_w=np.inf if power_w is None else power_w,
        min_value=limits.get("min_progress", MIN_PROGRESS),
    )


def _build_goal(goal: RoundGoal, option: WorkOption, offered_width: float) -> RoundGoal:
    """Return the goal of an option; whoever can train no more than ``offered_width`` receives no more."""
    width = min(option.width, offered_width)
    return dataclasses.replace(goal, share=option.share, compression=option.encoding.compression, width=width)


def _build_plan(
    goals: Mapping[str, RoundGoal],
    found: JointSolution,
    *,
    offered: int,
    unknown: Mapping[str, RoundGoal],
    maxn: tuple[float, float],
) -> FleetPlan:
    """Return the plan with the goals of the working clients, of ``offered`` ones, and of those that are not known."""
    maxn_s, maxn_j = maxn
    steps = ", ".join(f"{share:g}" for share in sorted({goal.share for goal in goals.values()}))
    narrow = [goal.width for goal in goals.values() if goal.width < 1.0]
    of_width = ", ".join(f"{width:g}" for width in sorted(set(narrow)))
    widths = f", {len(narrow)} with {of_width} of their channels" if narrow else ""
    why = (
        f"{len(goals)} of {offered} clients with {steps} of their steps{widths}: "
        f"{format_figure(found.deadline_s)} s and {format_figure(found.energy_j)} J for {found.value:.2f} of the "
        f"progress, within {found.gap:.2%} of the least cost."
    )
    return FleetPlan(
        {**goals, **unknown},
        deadline_s=found.deadline_s,
        round_s=found.deadline_s,
        energy_j=found.energy_j,
        maxn_round_s=maxn_s,
        maxn_energy_j=maxn_j,
        feasible=found.feasible,
        why=why if found.feasible else f"{why} Not within the limits.",
    )
