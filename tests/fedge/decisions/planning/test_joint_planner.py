"""The plan of the policy joint: who works how much, and what the clients are asked for."""

from __future__ import annotations

import dataclasses
import math
from itertools import product

import pytest
from contracts.fronts import MODE, certain_front, some_front
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.planning import joint_planner
from fedge.decisions.planning.front_columns import build_columns
from fedge.decisions.planning.joint_planner import (
    BoardSupply,
    JointContext,
    UpdateEncoding,
    WorkOption,
    build_problem,
    compute_maxn_round,
    list_options,
    plan_joint,
)
from fedge.decisions.planning.progress_model import NO_ROUNDS, find_shape, step_worth, width_worth
from fedge.devices.board_kinds import NetworkLink
from fedge.types import Compression, FleetPlan, Front, FrontPoint, LinkUse, NarrowOffer, RoundGoal

GOAL = RoundGoal("joint", 0)
START = find_shape(NO_ROUNDS)
ENCODINGS = (UpdateEncoding(), UpdateEncoding(Compression("int8"), 0.25), UpdateEncoding(Compression("topk"), 0.1))


def a_front(work_s: float, up_s: float = 0.0, up_share: float = 1.0) -> Front:
    """Two modes, the slower one cheaper; 2 s of download."""
    points = (FrontPoint(MODE, work_s, 20.0 * work_s), FrontPoint(MODE, 1.5 * work_s, 18.0 * work_s))
    return Front(points, points[0], 2.0, 2.0 + up_s, 4.0, up_s=up_s, up_share=up_share)


def test_a_slow_client_gets_fewer_steps_than_fast_ones():
    fronts = {"slow": a_front(60.0), **{f"fast-{i}": a_front(5.0) for i in range(5)}}
    context = JointContext(weights={"slow": 3.0, **{f"fast-{i}": 1.0 for i in range(5)}})
    plan = plan_joint(fronts, list(fronts), GOAL, context)
    assert plan.goals["slow"].share < min(plan.goals[name].share for name in fronts if name != "slow")
    assert plan.deadline_s < 40.0


HALF = NarrowOffer(0.5, work=0.3, sent=0.25)


QUARTER = NarrowOffer(0.25, work=0.15, sent=0.07)
WIDTHS = (0.5, 0.25)


def with_offer(front: Front, *offers: NarrowOffer) -> Front:
    return dataclasses.replace(front, narrow=offers or (HALF,))


def test_a_slow_client_that_offers_a_narrow_network_is_asked_for_it_and_the_fast_ones_are_not():
    fronts = {"slow": a_front(60.0), **{f"fast-{i}": with_offer(a_front(5.0)) for i in range(5)}}
    context = JointContext(weights={"slow": 3.0, **{f"fast-{i}": 1.0 for i in range(5)}}, widths=WIDTHS)
    without = plan_joint(fronts, list(fronts), GOAL, context)
    with_it = plan_joint({**fronts, "slow": with_offer(fronts["slow"])}, list(fronts), GOAL, context)
    assert {goal.width for goal in without.goals.values()} == {1.0}
    assert {name: goal.width for name, goal in with_it.goals.items() if goal.width < 1.0} == {"slow": 0.5}
    assert with_it.goals["slow"].share >= without.goals["slow"].share
    assert "1 with 0.5 of their channels" in with_it.why
    assert with_it.energy_j < without.energy_j


@given(st.lists(some_front, min_size=1, max_size=6), st.floats(0.05, 1.0))
def test_clients_of_at_least_half_of_the_weight_train_all_channels(fronts, work):
    offers = [NarrowOffer(width, work=work * width, sent=0.1) for width in WIDTHS]
    named = {f"b{i}": with_offer(front, *offers) for i, front in enumerate(fronts)}
    weights = {name: 1.0 + i for i, name in enumerate(named)}
    plan = plan_joint(named, list(named), GOAL, JointContext(weights, widths=WIDTHS))
    narrow = sum(weights[name] for name, goal in plan.goals.items() if goal.width < 1.0)
    assert narrow <= 0.5 * sum(weights.values()) + 1e-9


def test_no_narrow_update_is_sent_with_topk_whose_residual_belongs_to_one_width():
    options = list_options(JointContext(encodings=ENCODINGS, widths=WIDTHS))
    assert {option.encoding.compression.kind for option in options if option.width < 1.0} == {"none", "int8"}
    assert list_options(JointContext(encodings=ENCODINGS)) == [option for option in options if option.width == 1.0]


def test_a_client_whose_memory_takes_half_of_the_channels_is_sent_no_more():
    fronts = {"small": dataclasses.replace(a_front(5.0), width=0.5), "large": a_front(5.0)}
    plan = plan_joint(fronts, list(fronts), GOAL, JointContext())
    assert {name: goal.width for name, goal in plan.goals.items()} == {"small": 0.5, "large": 1.0}


def test_a_client_is_asked_for_no_width_that_it_does_not_offer_or_that_the_run_does_not_allow():
    fronts = {"slow": with_offer(a_front(60.0), QUARTER), **{f"fast-{i}": a_front(5.0) for i in range(5)}}
    for allowed, asked in (((0.25,), 0.25), ((0.75, 0.5), 1.0), ((), 1.0)):
        plan = plan_joint(fronts, list(fronts), GOAL, JointContext({"slow": 3.0, "fast-0": 1.0}, widths=allowed))
        assert min(goal.width for goal in plan.goals.values()) == asked


def test_a_narrow_network_is_priced_by_its_own_steps_and_bytes():
    link = NetworkLink(20.0, 4.0, 0.5, 1.5)
    slow = dataclasses.replace(with_offer(offer_with(link.transfer(4e6, 4e6, 0.25)), HALF, QUARTER), fixed_share=0.2)
    costs = {1.0: (1.0, 1.0), 0.5: (0.3, 0.25), 0.25: (0.15, 0.07)}
    fronts = {"fast": a_front(1.0), "slow": slow}
    options = list_options(context := JointContext(encodings=ENCODINGS, widths=WIDTHS))
    problem = build_problem(build_columns(fronts), list(fronts.values()), options, context, GOAL)
    for k, option in enumerate(options):
        work, part = costs[option.width]
        truth = link.transfer(part * 4e6, part * 4e6, option.encoding.up_share)
        assert problem.fixed_s[1, k] == pytest.approx(truth.down_s + truth.up_s)
        assert problem.fixed_j[1, k] == pytest.approx(truth.radio_j)
        assert problem.scale[1, k] == pytest.approx(work * (0.2 + 0.8 * option.share))
        sent = 0.75 if option.encoding.compression.kind == "topk" else 1.0
        worth = 0.5 * sent * step_worth(option.share, START)
        assert problem.value[1, k] == pytest.approx(worth * width_worth(option.width, START))
        assert problem.value[0, k] == pytest.approx(worth if option.width == 1.0 else 0.0)


def test_a_client_that_its_memory_narrows_is_worth_no_more_than_what_it_trains():
    fronts = {"narrow": dataclasses.replace(a_front(9.0), width=0.5), "whole": a_front(5.0)}
    options = list_options(context := JointContext())
    value = build_problem(build_columns(fronts), list(fronts.values()), options, context, GOAL).value
    assert value[0] == pytest.approx(value[1] * width_worth(0.5, START))
    whole = [option.share for option in options].index(1.0)
    assert value[:, whole].sum() == pytest.approx(1.0)


def list_parts(
    front: Front, options: list[WorkOption], weight: float, *, may_be_narrow: bool
) -> list[tuple[float, ...]]:
    """End, joules above idling and progress of resting and of every part that the client may have."""
    parts = [(0.0, 0.0, 0.0)]
    for option in options:
        offers = [NarrowOffer(1.0, 1.0, 1.0), *(front.narrow if may_be_narrow else ())]
        narrow = next((offer for offer in offers if offer.width == option.width), None)
        if narrow is None:
            continue
        worth = weight * step_worth(option.share, START) * width_worth(narrow.width, START)
        for point in (*front.points, front.maxn):
            part = narrow.work * option.share
            above_j = part * (point.work_j - front.idle_w * point.work_s)
            parts.append((front.link_s + part * point.work_s, above_j + front.radio_j, worth))
    return parts


@given(st.lists(certain_front, min_size=1, max_size=3), st.lists(st.booleans(), min_size=3, max_size=3))
def test_with_narrow_networks_a_small_fleets_plan_is_within_half_a_percent_of_every_choice(fronts, offering):
    few = {"SHARES": (0.5, 1.0), "NARROW_SHARES": (1.0,), "MIN_PROGRESS": 0.6}
    context = JointContext(widths=WIDTHS)
    named = {
        f"b{i}": with_offer(front, NarrowOffer(0.5, 0.25, 1.0), NarrowOffer(0.25, 0.1, 1.0)) if offers else front
        for i, (front, offers) in enumerate(zip(fronts, offering, strict=False))
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in few.items():
            patch.setattr(joint_planner, name, value)
        options = list_options(context)
        plan = plan_joint(named, list(named), GOAL, context)
    by_end = sorted(named, key=lambda name: (named[name].link_s + named[name].maxn.work_s, name))
    slow = {name for place, name in enumerate(by_end) if place >= 0.5 * len(by_end)}
    maxn_s, maxn_j = compute_maxn_round(build_columns(named), list(named.values()))
    idle_w, least = sum(front.idle_w for front in named.values()), math.inf
    parts = [list_parts(f, options, 1 / len(named), may_be_narrow=name in slow) for name, f in named.items()]
    for chosen in product(*parts):
        ends_s, joules, values = (tuple(column) for column in zip(*chosen, strict=True))
        if sum(values) >= 0.6 * (1.0 - 1e-9):
            end_s = max(ends_s)
            cost = 0.5 * end_s / maxn_s + 0.5 * (idle_w * end_s + sum(joules)) / max(maxn_j, 1e-12)
            least = min(least, cost / sum(values))
    value = sum(
        step_worth(goal.share, START) * width_worth(goal.width, START) / len(named) for goal in plan.goals.values()
    )
    found = (0.5 * plan.round_s / maxn_s + 0.5 * plan.energy_j / max(maxn_j, 1e-12)) / value
    assert least <= found * (1.0 + 1e-6)
    assert found <= least * 1.005


def test_on_a_slow_link_updates_are_encoded_and_on_none_they_are_not():
    context = JointContext(encodings=ENCODINGS)
    slow = plan_joint({"a": a_front(5.0, up_s=60.0), "b": a_front(5.0, up_s=60.0)}, ["a", "b"], GOAL, context)
    assert {goal.compression.kind for goal in slow.goals.values()} <= {"int8", "topk"}
    none = plan_joint({"a": a_front(5.0), "b": a_front(5.0)}, ["a", "b"], GOAL, context)
    assert {goal.compression.kind for goal in none.goals.values()} <= {"none", "int8"}


def test_a_front_that_was_offered_with_an_encoded_update_gives_the_same_plan():
    context = JointContext(encodings=ENCODINGS)
    whole = plan_joint({"a": a_front(5.0, up_s=40.0)}, ["a"], GOAL, context)
    encoded = plan_joint({"a": a_front(5.0, up_s=10.0, up_share=0.25)}, ["a"], GOAL, context)
    assert whole.deadline_s == encoded.deadline_s
    assert whole.goals == encoded.goals


def offer_with(link: LinkUse) -> Front:
    """A front as a client with this use of its link offers it."""
    told = {f.name: getattr(link, f.name) for f in dataclasses.fields(LinkUse) if f.name in Front.__dataclass_fields__}
    return dataclasses.replace(a_front(5.0), link_s=link.down_s + link.up_s, **told)


@pytest.mark.parametrize("offered", [1.0, 0.25, 0.1])
@pytest.mark.parametrize("latency_s", [0.0, 0.5])
def test_every_encoding_is_priced_as_the_link_does_it_whatever_the_client_offered(offered, latency_s):
    link = NetworkLink(20.0, 4.0, latency_s, 1.5)
    front = offer_with(link.transfer(4e6, 3e6, offered))
    columns, options = build_columns({"a": front}), [WorkOption(1.0, encoding) for encoding in ENCODINGS]
    problem = build_problem(columns, [front], options, JointContext(encodings=ENCODINGS), GOAL)
    truth = [link.transfer(4e6, 3e6, encoding.up_share) for encoding in ENCODINGS]
    assert problem.fixed_s[0] == pytest.approx([use.down_s + use.up_s for use in truth])
    assert problem.fixed_j[0] == pytest.approx([use.radio_j for use in truth])
    whole = offer_with(truth[0])
    assert compute_maxn_round(columns, [front]) == pytest.approx(
        compute_maxn_round(build_columns({"a": whole}), [whole])
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"up_share": 0.0},
        {"up_share": math.nan},
        {"encode_s": math.nan},
        {"up_s": 99.0},
        {"narrow": (HALF, NarrowOffer(0.25, work=0.0, sent=0.2))},
        {"narrow": (NarrowOffer(1.5, work=0.3, sent=0.2),)},
        {"narrow": (NarrowOffer(0.5, work=0.3, sent=math.nan),)},
    ],
)
def test_a_client_with_an_impossible_upload_leaves_the_others_planned(wrong):
    fronts = {"a": a_front(5.0), "b": a_front(6.0), "odd": dataclasses.replace(a_front(5.0), **wrong)}
    plan = plan_joint(fronts, list(fronts), GOAL, JointContext(encodings=ENCODINGS))
    assert plan.deadline_s == plan.goals["a"].deadline_s == plan.goals["b"].deadline_s
    assert plan.deadline_s is not None
    assert plan.goals["odd"] == GOAL


def test_a_client_that_is_worth_little_for_its_time_rests_and_its_idle_energy_counts():
    fronts = {"far": a_front(5.0, up_s=500.0), **{f"near-{i}": a_front(5.0) for i in range(4)}}
    goal = RoundGoal("joint", 0, limits={"min_progress": 0.5})
    plan = plan_joint(fronts, list(fronts), goal)
    assert set(plan.goals) == {f"near-{i}" for i in range(4)}
    assert plan.energy_j > 5 * 2.0 * plan.round_s


def test_a_client_that_waited_long_is_worth_its_time():
    fronts = {"far": a_front(5.0, up_s=30.0), **{f"near-{i}": a_front(5.0) for i in range(4)}}
    goal = RoundGoal("joint", 0, limits={"min_progress": 0.5})
    context = JointContext(weights={"far": 20.0, **{f"near-{i}": 1.0 for i in range(4)}})
    assert "far" not in plan_joint(fronts, list(fronts), goal).goals
    assert "far" in plan_joint(fronts, list(fronts), goal, context).goals


def test_limits_are_kept_or_the_plan_says_that_they_cannot_be():
    fronts = {"a": a_front(20.0), "b": a_front(10.0)}
    within = plan_joint(fronts, ["a", "b"], RoundGoal("joint", 0, limits={"deadline_s": 9.0, "min_progress": 0.2}))
    assert within.feasible
    assert within.deadline_s <= 9.0
    beyond = plan_joint(fronts, ["a", "b"], RoundGoal("joint", 0, limits={"deadline_s": 1.0}))
    assert not beyond.feasible
    assert beyond.why.endswith("Not within the limits.")
    assert beyond.deadline_s is not None
    assert all(goal.limits == {} and goal.deadline_s == beyond.deadline_s for goal in beyond.goals.values())


def test_a_users_deadline_that_the_plan_keeps_stays_in_the_goals():
    limits = {"deadline_s": 40.0, "round_energy_j": 1.0}
    plan = plan_joint({"a": a_front(5.0)}, ["a"], RoundGoal("joint", 0, limits=limits))
    assert not plan.feasible
    assert plan.deadline_s < 40.0
    assert plan.goals["a"].limits == limits


def test_under_a_limit_on_watts_every_client_gets_its_own_and_they_add_up():
    fronts = {"a": a_front(20.0), "b": a_front(10.0)}
    limits = {"fleet_power_w": 36.0, "min_progress": 0.2}
    plan = plan_joint(fronts, ["a", "b"], RoundGoal("joint", 0, limits=limits))
    assert plan.feasible
    assert sum(goal.limits["power_w"] for goal in plan.goals.values()) <= 36.0 + 1e-6


def test_clients_without_a_front_have_an_equal_share_of_the_watts_and_the_others_what_is_left():
    limits = {"fleet_power_w": 45.0, "min_progress": 0.2}
    goal = RoundGoal("joint", 0, limits=limits)
    plan = plan_joint({"a": a_front(20.0), "b": a_front(10.0)}, ["a", "b", "new"], goal)
    assert plan.feasible
    assert plan.goals["new"].limits["power_w"] == 15.0
    assert sum(goal.limits["power_w"] for goal in plan.goals.values()) <= 45.0 * (1.0 + 1e-9)
    unknown = plan_joint({}, ["x", "y", "z"], goal)
    assert [goal.limits["power_w"] for goal in unknown.goals.values()] == [15.0] * 3
    worthless = plan_joint({"a": a_front(5.0)}, ["a", "new"], goal, JointContext(weights={"a": math.nan}))
    assert [goal.limits["power_w"] for goal in worthless.goals.values()] == [22.5] * 2


CHEAP = RoundGoal("joint", 0, limits={"time_weight": 0.0, "min_progress": 0.3})


def asked_share(plan: FleetPlan, board: str) -> float:
    """Share of the steps that a board is asked for; 0 if it rests."""
    return plan.goals[board].share if board in plan.goals else 0.0


def test_clients_whose_energy_is_dear_do_less_than_their_like():
    fronts = {name: a_front(20.0) for name in ("dear-1", "dear-2", "plain-1", "plain-2")}
    supplies = {name: BoardSupply(price=4.0 if "dear" in name else 0.5) for name in fronts}
    plan = plan_joint(fronts, list(fronts), CHEAP, JointContext(supplies=supplies))
    alike = plan_joint(fronts, list(fronts), CHEAP)
    assert max(asked_share(plan, name) for name in ("dear-1", "dear-2")) < asked_share(plan, "plain-1")
    assert asked_share(plan, "plain-1") >= asked_share(alike, "plain-1")


def test_dear_idle_power_of_boards_at_rest_makes_rounds_shorter():
    fronts = {"a": a_front(20.0), "b": a_front(60.0)}
    goal = RoundGoal("joint", 0, limits={"time_weight": 0.0, "resting_w": 5.0})
    plans = [plan_joint(fronts, ["a", "b"], goal, JointContext(resting_price=price)) for price in (1.0, 100.0)]
    assert plans[1].round_s < plans[0].round_s


@given(
    st.lists(some_front, min_size=1, max_size=6),
    st.lists(st.none() | st.floats(0.0, 2.0), min_size=6, max_size=6),
    st.booleans(),
)
def test_no_part_takes_more_than_the_battery_has_above_its_floor(fronts, charges, limited):
    named = {f"b{i}": front for i, front in enumerate(fronts)}
    supplies = {
        name: BoardSupply(spare_j=charge * front.maxn.work_j, full_j=3.0 * front.maxn.work_j, charging_w=1.0)
        for (name, front), charge in zip(named.items(), charges, strict=False)
        if charge is not None
    }
    goal = RoundGoal("joint", 0, limits={"round_energy_j": 1.0, "fleet_power_w": 20.0} if limited else {})
    plan = plan_joint(named, list(named), goal, JointContext(supplies=supplies))
    if plan.wait_s is not None:
        assert not plan.goals
        assert set(supplies) == set(named)
        return
    for board in (board for board in plan.goals if board in supplies and plan.goals[board] != goal):
        front, share = named[board], plan.goals[board].share
        scale = front.fixed_share + (1.0 - front.fixed_share) * share
        drain_w = max(0.0, front.idle_w - 1.0)
        need_j = [
            front.radio_j + scale * (point.work_j - front.idle_w * point.work_s) + drain_w * plan.round_s
            for point in (*front.points, front.maxn)
            if front.link_s + scale * point.work_s <= plan.round_s * (1.0 + 1e-6)
        ]
        assert min(need_j) <= supplies[board].spare_j * (1.0 + 1e-6) + 1e-6


def test_the_plan_says_how_many_rest_for_want_of_charge_and_how_long_all_would_wait():
    fronts = {"flat": a_front(20.0), "full": a_front(10.0)}
    low = BoardSupply(spare_j=5.0, full_j=5_000.0, charging_w=3.0)
    plan = plan_joint(fronts, list(fronts), GOAL, JointContext(supplies={"flat": low}))
    assert set(plan.goals) == {"full"}
    assert plan.why.endswith(" Without the charge for any part: 1.")
    assert plan.wait_s is None
    alone = plan_joint({"flat": fronts["flat"]}, ["flat"], GOAL, JointContext(supplies={"flat": low}))
    least_j = 0.25 * 20.0 * 1.5 * (12.0 - 2.0)  # a quarter of the steps in the slower mode; charging covers idling
    assert alone.goals == {}
    assert alone.wait_s == math.floor((least_j - 5.0) / 1.0) + 1.0
    for never in (dataclasses.replace(low, charging_w=2.0), dataclasses.replace(low, full_j=least_j - 1.0)):
        assert plan_joint(fronts, ["flat"], GOAL, JointContext(supplies={"flat": never})).wait_s == math.inf
    assert set(plan_joint(fronts, ["flat", "new"], GOAL, JointContext(supplies={"flat": low})).goals) == {"new"}
