"""Findings state what was put in, and never more than their intervals; every kind of them can be worded."""

from dataclasses import replace
from typing import Any

import pytest
from contracts.characterised_points import Noise, Truth, sweep, varied
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.characterisation.findings import (
    FINDING_KINDS,
    TEMPLATES,
    FindingFigure,
    FindingStatement,
    SweepFinding,
    format_interval,
    format_quantity,
    merge_findings,
    rank_findings,
    render_finding,
    write_change,
)
from fedge.characterisation.knob_effects import compute_effects_from_first, compute_pooled_effects
from fedge.characterisation.point_statistics import PointStats, pool_repeats
from fedge.characterisation.sweep_findings import compute_plane, compute_pooled_findings
from fedge.characterisation.sweep_plan import MODE_KNOBS, ORDERED_KNOBS, UNORDERED_KNOBS, SweepPoint
from fedge.confidence_interval import Estimate
from fedge.types import PowerMode

POINT = SweepPoint("nano-1", "net", mode=PowerMode(4, 1479.0, 921.6, 1600.0))
QUIET = Noise(step=0.005, power=0.002)
VALUES: dict[str, list[Any]] = {
    "workers": [0, 1, 2, 4],
    "storage": ["sd", "ssd"],
    "cache": ["dropped", "warm"],
    "pinned": [False, True],
    "batch_size": [1, 16],
    "dvfs": [False, True],
    "runtime": ["bare", "docker:image"],
    "kind": ["train", "infer"],
    "prefetch": [1, 4],
}


def compute_findings(stats: tuple[PointStats, ...] | list[PointStats]) -> tuple[SweepFinding, ...]:
    points = pool_repeats(stats)
    return compute_pooled_findings(stats, points, compute_pooled_effects(points), compute_effects_from_first(points))


def _of(found: tuple[SweepFinding, ...], kind: str) -> list[SweepFinding]:
    return [one for one in found if one.kind == kind]


def _templates(finding: SweepFinding) -> list[str]:
    return [one.template for one in finding.statements]


def _changes(finding: SweepFinding) -> list[FindingFigure]:
    return [f for one in finding.statements if one.template == "change" for f in one.figures]


def _stalls(point: SweepPoint) -> Truth:
    return Truth(stall_s={0: 0.009, 1: 0.003, 2: 0.001}.get(point.workers, 0.001), copy_s=0.0, overhead_s=0.0)


def _modes(gpu: list[float]) -> list[SweepPoint]:
    return [replace(POINT, mode=PowerMode(4, 1479.0, one, 1600.0)) for one in gpu]


def test_a_second_worker_that_removes_two_thirds_of_the_stall_and_a_third_that_does_nothing():
    (found,) = _of(compute_findings(sweep(varied(POINT, "workers", [1, 2, 3]), _stalls, QUIET)), "workers")
    change, nothing = found.statements
    assert (change.terms, nothing.terms) == (
        {"knob": "workers", "before": 1, "after": 2},
        {"knob": "workers", "before": 2, "after": 3},
    )
    assert nothing.template == "no-effect"
    ratios = {one.quantity: one.low for one in change.figures}
    assert ratios == pytest.approx({"stall_s": 0.33, "e2e_s": 0.8, "energy_j": 0.8}, abs=0.01)
    assert found.title == (
        "Loader workers 1 -> 2: stall -67 %, epoch time -20 %, energy -20 %; loader workers 2 -> 3: no effect "
        "(net on nano-1, training, measured)."
    )
    assert all("loader workers 1 -> 2" in line for line in found.evidence[:3])
    assert set(found.points) == {one.key for one in varied(POINT, "workers", [1, 2, 3])}


times = st.floats(0.0001, 0.02)


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(VALUES)),
    st.lists(st.tuples(times, times, times), min_size=4, max_size=4),
    st.integers(0, 99),
    st.sampled_from([0.02, 0.3]),
)
def test_whatever_a_finding_states_is_one_of_the_certain_effects(knob, truths, seed, step):
    points = varied(replace(POINT, workers=1), knob, VALUES[knob])
    by_key = {
        p.key: Truth(stall_s=a, compute_s=b, first_stall_s=c) for p, (a, b, c) in zip(points, truths, strict=False)
    }
    stats = sweep(points, lambda point: by_key[point.key], Noise(step=step), seed=seed, steps=40)
    points = pool_repeats(stats)
    every = (*compute_pooled_effects(points), *compute_effects_from_first(points))
    certain = {(e.quantity, one) for e in every if e.certain for one in (e.ratio.value, max(e.ratio.low, 0.0))}
    for finding in compute_findings(stats):
        assert {(one.quantity, one.low) for one in _changes(finding)} <= certain
        assert render_finding(finding) == finding


def test_no_effect_is_stated_only_if_the_interval_says_so():
    points = varied(POINT, "runtime", ["bare", "docker:x"])
    (quiet,) = _of(compute_findings(sweep(points, lambda _: Truth(), QUIET)), "runtime")
    (noisy,) = _of(compute_findings(sweep(points, lambda _: Truth(), Noise(step=0.6, phi=0.5))), "runtime")
    assert (_templates(quiet), _templates(noisy)) == (["no-effect"], ["unclear"])
    assert noisy.strength < quiet.strength


def test_an_epoch_is_bound_by_what_takes_more_than_half_of_it():
    stalled = sweep([POINT], lambda _: Truth(stall_s=0.009, compute_s=0.003), QUIET)
    mixed = sweep([POINT], lambda _: Truth(stall_s=0.004, compute_s=0.004, overhead_s=0.002), QUIET)
    bounds = [_of(compute_findings(stats), "bound")[0].statements[0].terms["bound"] for stats in (stalled, mixed)]
    assert bounds == ["stall-bound", "bound by several parts"]


def test_the_fastest_setting_and_the_knee_name_the_number_of_others_like_them():
    alike = sweep(varied(POINT, "workers", [0, 2, 3]), lambda p: Truth(stall_s=0.001 if p.workers else 0.009), QUIET)
    found = compute_findings(alike)
    (fastest,) = (one.statements[0] for one in _of(found, "bound") if "fastest" in one.title)
    assert fastest.remark in {"2 workers; 1 other may be as fast", "3 workers; 1 other may be as fast"}
    (plane,) = _of(found, "plane")
    assert plane.statements[0].remark == "1 other may be as good"
    assert plane.statements[1].terms == {"count": 1, "total": 3}
    apart = sweep(varied(POINT, "workers", [1, 2]), _stalls, QUIET)
    assert "2 workers" in [one.statements[0].remark for one in _of(compute_findings(apart), "bound")]


def test_a_storage_that_the_cache_evens_out():
    stats = sweep(
        varied(POINT, "storage", ["sd", "ssd"]),
        lambda p: Truth(first_stall_s=0.02 if p.storage == "sd" else 0.01),
        QUIET,
    )
    (finding,) = _of(compute_findings(stats), "storage")
    assert _templates(finding) == ["change", "same-later"]
    assert finding.statements[0].figures[0].low == pytest.approx(0.5, abs=0.01)


def test_where_one_epoch_is_all_there_is_its_figures_are_stated_once():
    points = varied(POINT, "storage", ["sd", "ssd"])
    stats = sweep(points, lambda p: Truth(stall_s=0.02 if p.storage == "sd" else 0.01), QUIET, epochs=1)
    (finding,) = _of(compute_findings(stats), "storage")
    assert [one.quantity for one in _changes(finding)] == ["first_stall_s", "first_e2e_s"]


def test_the_cheapest_mode_against_the_top_one():
    def truth(point: SweepPoint) -> Truth:
        top = point.mode is not None and point.mode.gpu_mhz > 900
        own = {"compute_s": 0.01, "power_w": 15.0} if top else {"compute_s": 0.0115, "power_w": 9.0}
        return Truth(stall_s=0.0, copy_s=0.0, overhead_s=0.0, **own)

    (finding,) = _of(compute_findings(sweep(_modes([921.6, 614.4]), truth, QUIET)), "energy")
    (statement,) = finding.statements
    assert statement.terms == {"knob": "gpu_mhz", "before": 921.6, "after": 614.4}
    assert {one.quantity: one.low for one in statement.figures} == pytest.approx(
        {"energy_j": 0.69, "e2e_s": 1.15}, abs=0.01
    )
    slow = sweep(_modes([921.6, 76.8]), lambda p: Truth(compute_s=0.01 if p.mode == POINT.mode else 0.1), QUIET)
    assert _templates(_of(compute_findings(slow), "energy")[0]) == ["top-mode"]


def test_of_noise_no_mode_and_no_worker_saves_energy():
    """Twelve sweeps in which the energy differs by some percent from point to point, and by chance alone."""
    points = _modes([921.6, 614.4, 307.2]) + varied(POINT, "workers", [1, 2])
    sweeps = (sweep(points, lambda _: Truth(), Noise(epoch=0.05), seed=seed) for seed in range(12))
    assert sum(one.kind in {"energy", "pipelining"} for stats in sweeps for one in compute_findings(stats)) <= 2


def test_pipelining_saves_energy_and_says_how_much():
    (finding,) = _of(compute_findings(sweep(varied(POINT, "workers", [0, 1, 2]), _stalls, QUIET)), "pipelining")
    (statement,) = finding.statements
    assert (statement.terms, statement.remark) == ({"work": "training"}, "2 workers")
    assert statement.figures[0].low == pytest.approx(0.5, abs=0.01)


def test_what_varies_within_and_between_boards():
    points = [replace(POINT, board=board, repeat=repeat) for board in ("nano-1", "nano-2") for repeat in range(9)]
    truth = {one: Truth(compute_s=0.01 + 0.001 * one.repeat + 0.002 * (one.board == "nano-2")) for one in points}
    found = compute_findings(sweep(points, truth.__getitem__, Noise(step=0, power=0)))
    within = {one.board: one.statements[0] for one in _of(found, "varies-within")}
    assert set(within) == {"nano-1", "nano-2"}
    assert within["nano-1"].figures[0].low == pytest.approx(0.008 / 0.015, rel=1e-6)
    assert within["nano-1"].remark == "more than the minibatches explain"
    assert ": 9 repeats from " in next(one for one in found if one.board == "nano-1").evidence[0]
    (between,) = _of(found, "varies-between")
    assert (between.boards, between.statements[0].terms) == (("nano",), {"count": 2})


def test_doubtful_points_are_counted_with_their_reasons():
    stats = sweep(varied(POINT, "workers", range(4)), lambda _: Truth())

    def mark(i: int, one: PointStats) -> PointStats:
        return replace(
            one, throttled=i == 2, settled=i != 2, unsettled_reason="it drifts", parameters={"others_cores": 0.1 + i}
        )

    found = compute_findings([mark(i, one) for i, one in enumerate(stats)])
    terms = {kind: _of(found, kind)[0].statements[0].terms for kind in ("throttled", "unsettled", "disturbed")}
    assert {kind: one["count"] for kind, one in terms.items()} == {"throttled": 1, "unsettled": 1, "disturbed": 3}
    assert "it drifts" in _of(found, "unsettled")[0].evidence[0]
    assert "1.1 cores" in _of(found, "disturbed")[0].evidence[0]
    assert not {"throttled", "unsettled", "disturbed"} & {one.kind for one in compute_findings(stats)}


def test_the_same_step_in_other_settings_is_evidence():
    points = [replace(POINT, workers=w, storage=s) for w in (0, 1) for s in ("sd", "ssd")]
    stats = sweep(points, lambda p: Truth(stall_s=0.01 if p.workers == 0 else 0.004), QUIET)
    (finding,) = _of(compute_findings(stats), "workers")
    assert any("sd, dropped cache: stall -60 %" in sentence for sentence in finding.evidence)


def test_every_knob_has_a_kind_and_without_points_there_are_no_findings():
    for knob, own in VALUES.items():
        found = compute_findings(sweep(varied(replace(POINT, workers=1), knob, own[:2]), lambda _: Truth(), steps=20))
        assert {one.kind for one in found} <= set(FINDING_KINDS)
        assert (knob if knob != "kind" else "inference") in {one.kind for one in found}
    assert set(VALUES) | set(MODE_KNOBS) == {*ORDERED_KNOBS, *UNORDERED_KNOBS}
    assert compute_findings([]) == ()


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_can_be_worded(template):
    names = ("quantity", "value", "setting", "bound", "mode", "interval", "count", "total", "work")
    terms: dict[str, Any] = {**dict.fromkeys(names, 2), "knob": "gpu_mhz", "before": 614.4, "after": 921.6}
    statement = FindingStatement(template, terms, (FindingFigure("e2e_s", 0.5, 0.6),), "a remark")
    title = render_finding(SweepFinding("gpu", (statement,), (), 0.5, (), "measured")).title
    assert title.endswith("(measured).")
    assert "{" not in title


def test_a_figure_is_one_value_where_it_is_known_and_its_interval_where_hardly_more_than_its_direction_is():
    known, vague = Estimate(0.56, 0.55, 0.57, 9), Estimate(0.78, 0.61, 0.99, 9)
    assert FindingFigure.from_ratio(known, "e2e_s") == FindingFigure("e2e_s", 0.56, 0.56)
    assert FindingFigure.from_ratio(vague, "e2e_s") == FindingFigure("e2e_s", 0.61, 0.99)
    assert FindingFigure.from_share(Estimate(0.59, 0.55, 0.63, 9), "stall_s") == FindingFigure("stall_s", 0.59, 0.59)
    assert FindingFigure.from_share(Estimate(0.64, -0.3, 1.6, 2), "stall_s") == FindingFigure("stall_s", 0.0, 1.0)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.55, 0.9, "power -10 to -45 %"),
        (1.02, 1.02, "power +2 %"),
        (1.7, 2.3, "power x 1.7 to 2.3"),
        (10.3, 10.3, "power x 10.3"),
        (0.001, 0.8, "power -20 to over -99 %"),
        (0.996, 0.996, "power -0.4 %"),
    ],
)
def test_a_change_has_its_sign_and_the_lesser_end_first(low, high, text):
    assert write_change(FindingFigure("power_w", low, high)) == text


def test_values_have_their_units_and_three_digits():
    seconds = [format_quantity(value, "e2e_s") for value in (20161.0, 12.06, 1.6, 0.0041, 0.00031, 0.0)]
    assert seconds == ["20161 s", "12.1 s", "1.60 s", "4.10 ms", "310 us", "0 s"]
    assert (format_quantity(830.2, "energy_j"), format_quantity(14.23, "power_w")) == ("830 J", "14.2 W")
    assert format_interval(Estimate(0.33, 0.31, 0.35, 9)) == "-69.0 to -65.0 %"
    assert format_interval(Estimate(3.0, 2.5, 3.5, 9)) == "x 2.5 to 3.5"


def _finding(
    board: str, ratio: float, *, workload: str = "lenet", strength: float = 0.5, kind: str = "gpu", **given: Any
) -> SweepFinding:
    terms = {"knob": "gpu_mhz", "before": 1.0, "after": given.get("mhz", 2.0)}
    figures = tuple(FindingFigure(name, ratio, ratio) for name in given.get("quantities", ["e2e_s"]))
    return SweepFinding(
        kind,
        (FindingStatement("change", terms, figures, str(given.get("remark", ""))),),
        evidence=(f"the figures of {board}",),
        strength=strength,
        points=(f"{board}{workload}",),
        boards=(board,),
        workloads=(workload,),
        work="train",
    )


def test_boards_are_merged_with_the_range_and_each_in_the_evidence():
    boards = {"nano-1": 0.6, "tx2-1": 0.8, "here": 0.7}
    (one,) = merge_findings([_finding(board, ratio) for board, ratio in boards.items()])
    assert one.statements[0].figures == (FindingFigure("e2e_s", 0.6, 0.8),)
    assert (one.boards, one.workloads, len(one.points)) == (tuple(boards), ("lenet",), 3)
    assert {f"the figures of {board}" for board in boards} <= set(one.evidence)
    assert "GPU clock 1 -> 2 MHz: epoch time -40 % (lenet on nano-1, training, estimated)." in one.evidence
    assert "(lenet on nano-1, tx2-1 and here, training, estimated)" in render_finding(one).title


def test_workloads_are_merged_on_the_same_boards_alone_and_only_at_the_same_clocks():
    found = [
        _finding("nano-1", 0.6),
        _finding("nano-1", 0.5, workload="resnet"),
        _finding("tx2-1", 0.7, workload="resnet"),
    ]
    assert {(one.boards, one.workloads) for one in merge_findings(found)} == {
        (("nano-1",), ("lenet",)),
        (("tx2-1", "nano-1"), ("resnet",)),
    } or {(one.boards, one.workloads) for one in merge_findings(found)} == {
        (("nano-1",), ("lenet",)),
        (("nano-1", "tx2-1"), ("resnet",)),
    }
    assert merge_findings(found[:2])[0].workloads == ("lenet", "resnet")
    assert len(merge_findings([found[0], _finding("nano-1", 0.5, workload="resnet", mhz=3.0)])) == 2


@pytest.mark.parametrize(
    "other",
    [
        _finding("tx2-1", 1.4),
        _finding("tx2-1", 0.6, strength=0.1),
        _finding("tx2-1", 0.6, kind="cpu"),
        _finding("tx2-1", 0.6, strength=0.6, quantities=["e2e_s", "energy_j"]),
    ],
    ids=["direction", "strength", "kind", "energy"],
)
def test_what_differs_or_would_get_lost_is_not_merged(other):
    assert len(merge_findings([_finding("nano-1", 0.6), other])) == 2


def test_a_remark_is_kept_if_all_have_it_and_clocks_of_several_boards_are_low_and_high():
    remarks = [
        merge_findings([_finding("nano-1", 0.5, remark="x"), _finding("tx2-1", 0.5, remark=other)])[0] for other in "xy"
    ]
    assert [one.statements[0].remark for one in remarks] == ["x", ""]
    (both,) = merge_findings([_finding("nano-1", 0.5, mhz=921.0), _finding("tx2-1", 0.5, mhz=1300.0)])
    assert render_finding(both).title.startswith("GPU clock low -> high: epoch time -50 % (lenet on nano-1 and tx2-1")


def test_of_workers_every_step_must_be_alike():
    one, other = (_finding(board, 0.6, kind="workers") for board in ("nano-1", "tx2-1"))
    more = replace(other, statements=(*other.statements, FindingStatement("same-later")))
    assert [len(merge_findings([one, each])) for each in (other, more)] == [1, 2]


def test_a_second_finding_of_a_kind_comes_after_a_weaker_one_of_another():
    found = [
        _finding("a", 0.5, kind=kind, strength=strength)
        for kind, strength in (("gpu", 0.5), ("gpu", 0.45), ("cache", 0.4))
    ]
    ranked = rank_findings(found)
    assert [one.kind for one in ranked] == ["gpu", "cache", "gpu"]
    assert [one.strength for one in ranked] == sorted((one.strength for one in ranked), reverse=True)


HERE_POINT = SweepPoint("here", "net")


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.001, 0.1), st.floats(1.0, 50.0)), min_size=2, max_size=8))
def test_front_and_beaten_settings_are_those_of_brute_force(costs):
    points = varied(HERE_POINT, "workers", range(len(costs)))
    truth = [Truth(compute_s=seconds, power_w=watts) for seconds, watts in costs]
    settings_seen = pool_repeats(
        sweep(points, lambda p: truth[p.workers], Noise(step=0.01, power=0.01), steps=20, epochs=2)
    )
    found = compute_plane(settings_seen)
    both = [(one.stats.e2e_s.value, one.stats.energy_j.value) for one in settings_seen if one.stats.energy_j]
    unbeaten = {
        i for i, a in enumerate(both) if not any(b[0] <= a[0] and b[1] <= a[1] for j, b in enumerate(both) if j != i)
    }
    assert set(found.front) == unbeaten
    assert [both[i][0] for i in found.front] == sorted(both[i][0] for i in found.front)
    assert found.knee in found.front
    for worse, better in found.dominated:
        assert both[better][0] < both[worse][0]
        assert both[better][1] < both[worse][1]


def test_settings_of_which_none_is_certainly_worse_are_not_beaten():
    found = compute_plane(
        pool_repeats(sweep(varied(HERE_POINT, "workers", range(6)), lambda _: Truth(), Noise(step=0.2)))
    )
    assert found.dominated == ()


def test_the_knee_is_where_little_energy_more_saves_much_time():
    truth = [
        Truth(compute_s=0.010, power_w=20.0),
        Truth(compute_s=0.011, power_w=9.0),
        Truth(compute_s=0.04, power_w=2.3),
    ]
    found = compute_plane(pool_repeats(sweep(varied(HERE_POINT, "workers", range(3)), lambda p: truth[p.workers])))
    assert (found.front, found.knee) == ((0, 1, 2), 1)


@pytest.mark.parametrize("metered", [True, False])
def test_a_plane_needs_two_settings_with_known_energy(metered):
    points = varied(HERE_POINT, "workers", range(1 if metered else 3))
    assert compute_plane(pool_repeats(sweep(points, lambda _: Truth(), metered=metered))) is None
