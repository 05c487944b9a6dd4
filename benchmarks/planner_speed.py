"""Time and memory of planning a round: every planner on random fronts.

Prints per planner the seconds (best of three) and the process's peak memory so far. One thread. The fronts are random:
see ``draw_columns``.

    OMP_NUM_THREADS=1 python benchmarks/planner_speed.py [BOARDS] [POINTS]
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedge.decisions.planning.cost_sweep import find_weighted_deadline
from fedge.decisions.planning.fleet_planners import find_shortest_round
from fedge.decisions.planning.front_columns import FrontColumns
from fedge.decisions.planning.gain_search import find_best_gain
from fedge.decisions.planning.joint_planner import MIN_PROGRESS, NARROW_SHARES, SHARES
from fedge.decisions.planning.joint_search import JointLimits, JointProblem, solve_joint
from fedge.experiment import DEFAULT_WIDTHS

JOINT_FLEET = 10_000
BOARDS, POINTS = 100_000, 64


def draw_columns(boards: int, points: int) -> FrontColumns:
    """Draw fronts like those of four kinds of boards: work of 20 to 80 s at MAXN, up to four times that in slow modes.

    Power falls with speed as p = idle + a speed^2, with noise, so that a margin changes the order of ends, and standard
    deviations are 1 to 8 %. Each board's points include one for MAXN.
    """
    rng = np.random.default_rng(1)
    fastest_s = np.repeat(rng.choice([20.0, 30.0, 45.0, 80.0], boards), points).reshape(boards, points)
    fastest_s *= rng.lognormal(0.0, 0.05, (boards, 1))
    slowdown = np.concatenate([np.ones((boards, 1)), np.sort(rng.uniform(1.0, 4.0, (boards, points - 1)))], axis=1)
    idle_w = rng.uniform(1.0, 6.0, boards)
    work_s = fastest_s * slowdown
    power_w = idle_w[:, None] + rng.uniform(8.0, 30.0, (boards, 1)) / slowdown**2 * rng.lognormal(0, 0.02, work_s.shape)
    link_s = rng.uniform(0.5, 5.0, (boards, 1))
    held_s = link_s + work_s * np.exp(rng.uniform(0.01, 0.08, work_s.shape))
    order = np.argsort(held_s, axis=1)
    flat = [np.take_along_axis(c, order, 1).ravel() for c in (link_s + work_s, held_s, power_w, work_s)]
    ends_s, held, watts, work = flat
    above_j = work * (watts - np.repeat(idle_w, points))
    names = tuple(f"board-{i:06}" for i in range(boards))
    offsets = np.arange(0, boards * points + 1, points)
    return FrontColumns(
        names,
        offsets,
        ends_s=ends_s,
        safe_ends_s=held,
        above_idle_j=above_j,
        power_w=watts,
        idle_w=idle_w,
        maxn_s=link_s[:, 0] + work_s[:, 0],
        maxn_safe_s=held_s[:, 0].copy(),
        maxn_work_s=work_s[:, 0].copy(),
        maxn_work_j=work_s[:, 0] * power_w[:, 0],
        maxn_idle_w=1.2 * idle_w,
        radio_j=np.zeros(boards),
    )


def build_planners(columns: FrontColumns) -> dict[str, Callable[[], object]]:
    """Return every planner's core with limits that bind."""
    maxn_s, maxn_j = columns.maxn_round_s, columns.maxn_energy_j
    maxn_w = float((columns.maxn_work_j / columns.maxn_work_s).sum())
    gains = np.random.default_rng(2).uniform(0.1, 2.0, len(columns))
    prices = {"time_price": 0.5 / maxn_s, "energy_price": 0.5 / maxn_j}
    tenth = max(1, len(columns) // 10)
    return {
        "balanced": lambda: find_weighted_deadline(columns, 0.5, 1.05 * maxn_s),
        "balanced, any slowdown": lambda: find_weighted_deadline(columns, 0.5),
        "least-energy": lambda: find_weighted_deadline(columns, 0.0, 1.5 * maxn_s),
        "energy-budget": lambda: find_weighted_deadline(columns, 0.0),
        "fastest, joules": lambda: find_shortest_round(columns, 0.6 * maxn_j, None),
        "fastest, watts": lambda: find_shortest_round(columns, None, 0.3 * maxn_w),
        "fastest, both": lambda: find_shortest_round(columns, 0.55 * maxn_j, 0.3 * maxn_w),
        "gain, any count": lambda: find_best_gain(columns, gains, **prices),
        "gain, a tenth of the boards": lambda: find_best_gain(columns, gains, count=tenth, **prices),
    }


def draw_joint_problem(clients: int, points: int) -> JointProblem:
    """Draw a joint problem on such fronts: the planner's shares of the steps and encodings, also of narrow networks."""
    columns, rng = draw_columns(clients, points), np.random.default_rng(3)
    link_s = columns.maxn_s - columns.maxn_work_s
    work_s = (columns.ends_s - np.repeat(link_s, points)).reshape(clients, points)
    order = np.argsort(work_s, axis=1)
    narrow = ((width, (1.0, 0.25), NARROW_SHARES) for width in DEFAULT_WIDTHS if width < 1.0)
    work = ((1.0, (1.0, 0.25, 0.1), SHARES), *narrow)
    options = [(share, width, sent) for width, parts, shares in work for sent in parts for share in shares]
    share, width, sent = (np.array(column) for column in zip(*options, strict=True))
    fixed_s = link_s[:, None] * (0.3 + 0.7 * sent)
    worth = share / (0.5 + 0.45 * share + 0.05 * share**2) * np.sqrt(width) * np.where(sent < 0.2, 0.75, 1.0)
    return JointProblem(
        np.take_along_axis(work_s, order, axis=1),
        above_j=np.take_along_axis(columns.above_idle_j.reshape(clients, points), order, axis=1),
        power_w=np.take_along_axis(columns.power_w.reshape(clients, points), order, axis=1),
        fixed_s=fixed_s,
        fixed_j=0.8 * fixed_s,
        scale=np.broadcast_to(share * width**1.5, fixed_s.shape).copy(),
        value=rng.dirichlet(np.ones(clients))[:, None] * worth,
        price=np.ones(clients),
        spare_j=np.full(clients, np.inf),
        drain_w=np.zeros(clients),
        idle_w=float(columns.idle_w.sum()),
        priced_idle_w=float(columns.idle_w.sum()),
        time_price=0.5 / columns.maxn_round_s,
        energy_price=0.5 / columns.maxn_energy_j,
    )


def time_joint_plan(clients: int, points: int) -> None:
    """Print processor time and gap of the joint plan without limits, and with the least progress of the policy."""
    problem = draw_joint_problem(clients, points)
    for name, limits in (("joint", JointLimits()), ("joint, least progress", JointLimits(min_value=MIN_PROGRESS))):
        start_s = time.process_time()
        found = solve_joint(replace(problem), limits)
        taken_s = time.process_time() - start_s
        gap = "no plan" if found is None else f"gap {found.gap:.2%}"
        print(f"{name:<28}{taken_s:10.3f} s   {clients} clients, processor time; {gap}", flush=True)


def time_best_of_three(run: Callable[[], object]) -> float:
    """Return the seconds of the quickest of three runs, or of one if it takes long."""
    taken_s: list[float] = []
    while len(taken_s) < 3 and sum(taken_s) < 15.0:
        start_s = time.perf_counter()
        run()
        taken_s.append(time.perf_counter() - start_s)
    return min(taken_s)


def peak_gb() -> float:
    """Return the peak memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main(boards: int, points: int) -> None:
    columns = draw_columns(boards, points)
    print(f"{boards} boards x {points} points; the columns themselves: peak {peak_gb():.2f} GB")
    for name, run in build_planners(columns).items():
        print(f"{name:<28}{time_best_of_three(run):10.3f} s   peak {peak_gb():.2f} GB", flush=True)
    time_joint_plan(min(boards, JOINT_FLEET), points)


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:3]]
    main(*given, *(BOARDS, POINTS)[len(given) :])
