"""Findings say what was put in, in plain words, and never more than their intervals."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from contracts.characterised_points import PLAN, Noise, Truth, sweep, varied
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.characterisation.finding_text import QUANTITY_NAMES
from fedge.characterisation.knob_effects import compute_effects, compute_effects_from_first
from fedge.characterisation.point_knobs import MODE_KNOBS, ORDERED_KNOBS, UNORDERED_KNOBS
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.pooled_settings import pool_repeats
from fedge.characterisation.sweep_findings import FINDING_KINDS, SweepFinding, compute_findings
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.types import PowerMode

POINT = SweepPoint("nano-1", "net", mode=PowerMode(4, 1479.0, 921.6, 1600.0))
QUIET = Noise(step=0.005, power=0.002)
_NAMES = {name: quantity for quantity, name in QUANTITY_NAMES.items()}
_ANY = "|".join(sorted(_NAMES, key=len, reverse=True))
_CLAIM = re.compile(rf"({_ANY}) by (over )?([\d.]+) %")
_TIMES = re.compile(rf"takes ([\d.]+) times ({_ANY})|makes ({_ANY}) ([\d.]+) times as long")


def _of(found: tuple[SweepFinding, ...], kind: str) -> list[SweepFinding]:
    return [one for one in found if one.kind == kind]


def _claims(title: str) -> list[tuple[str, float]]:
    """Quantity and ratio of everything that a title claims of a change."""
    claims = []
    for verb, rest in re.findall(r"(cuts|raises) (.*?)(?= but raises| but takes| but makes|;| \(|$)", title):
        for name, over, part in _CLAIM.findall(rest):
            sign = 1 if verb == "raises" else -1
            claims.append((_NAMES[name], 1 + sign * (0.995 if over else float(part) / 100)))
    for drawn, what, lasting, longer in _TIMES.findall(title):
        claims.append((_NAMES[what or lasting], float(drawn or longer)))
    return claims


def _stalls(point: SweepPoint) -> Truth:
    return Truth(stall_s={0: 0.009, 1: 0.003, 2: 0.001}.get(point.workers, 0.001), copy_s=0.0, overhead_s=0.0)


def test_a_second_worker_that_removes_two_thirds_of_the_stall_and_a_third_that_does_nothing() -> None:
    found = _of(compute_findings(sweep(varied(POINT, "workers", [1, 2, 3]), _stalls, QUIET), PLAN), "workers")
    title = (
        "Adding a second loader worker cuts the stall by 67 %, the epoch's time by 20 % and the energy by 20 %; "
        "adding a third loader worker changes nothing (net on nano-1, training, measured)."
    )
    assert [one.title for one in found] == [title]
    stall = re.compile(r"The stall: [\d.]+ ms with 1 worker, [\d.]+ ms with 2 workers, so -")
    assert any(stall.match(sentence) for sentence in found[0].evidence)
    assert set(found[0].points) == {one.key for one in varied(POINT, "workers", [1, 2, 3])}


values = {
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
times = st.floats(0.0001, 0.02)


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(values)),
    st.lists(st.tuples(times, times, times), min_size=4, max_size=4),
    st.integers(0, 99),
    st.sampled_from([0.02, 0.3]),
)
def test_whatever_a_title_claims_is_certain_and_has_the_right_sign_and_figure(
    knob: str, truths: list[tuple[float, float, float]], seed: int, step: float
) -> None:
    """Every claim is one of the certain effects, rounded; and with the truth known, on the truth's side of 1."""
    points = varied(replace(POINT, workers=1), knob, values[knob])
    by_key = {
        p.key: Truth(stall_s=a, compute_s=b, first_stall_s=c) for p, (a, b, c) in zip(points, truths, strict=False)
    }
    stats = sweep(points, lambda point: by_key[point.key], Noise(step=step), seed=seed, steps=40)
    every = (*compute_effects(stats), *compute_effects_from_first(pool_repeats(stats)))
    certain = [(e.quantity, e.ratio.value) for e in every if e.certain]
    for finding in compute_findings(stats, PLAN):
        if finding.kind in {"energy", "pipelining"}:
            continue
        for quantity, claimed in _claims(finding.title):
            tolerance = 0.006 + (0.006 if claimed < 2 else 0.03) * claimed
            assert any(q == quantity and value == pytest.approx(claimed, abs=tolerance) for q, value in certain), (
                finding.title
            )


@settings(max_examples=20)
@given(st.floats(1.1, 3.0), st.booleans(), st.integers(0, 99))
def test_what_was_put_in_comes_out_with_its_sign(factor: float, slower: bool, seed: int) -> None:
    ratio = factor if slower else 1 / factor
    stats = sweep(
        varied(POINT, "dvfs", [False, True]),
        lambda p: Truth(compute_s=0.01 * (ratio if p.dvfs else 1)),
        QUIET,
        seed=seed,
    )
    (finding,) = _of(compute_findings(stats, PLAN), "dvfs")
    claims = dict(_claims(finding.title))
    assert claims["compute_s"] == pytest.approx(ratio, rel=0.04)
    assert (claims["e2e_s"] > 1) == slower
    assert finding.title.startswith("DVFS on instead of off ")


@pytest.mark.parametrize("noise", [Noise(), Noise(step=0.2, phi=0.5), Noise(epoch=0.02)])
def test_pure_noise_makes_an_effect_of_one_comparison_in_twenty_at_most(noise: Noise) -> None:
    claims, comparisons = 0, 0
    for seed in range(10):
        stats = sweep(
            varied(POINT, "workers", range(4)) + varied(POINT, "runtime", "bc"), lambda _: Truth(), noise, seed=seed
        )
        claims += sum(len(_claims(one.title)) for one in compute_findings(stats, PLAN))
        comparisons += len(compute_effects(stats))
    assert claims <= 0.05 * comparisons


def test_nothing_is_said_to_change_nothing_unless_the_interval_says_so() -> None:
    quiet = compute_findings(sweep(varied(POINT, "runtime", ["bare", "docker:x"]), lambda _: Truth(), QUIET), PLAN)
    noisy = compute_findings(
        sweep(varied(POINT, "runtime", ["bare", "docker:x"]), lambda _: Truth(), Noise(step=0.6, phi=0.5)), PLAN
    )
    assert _of(quiet, "runtime")[0].title.startswith("Running in docker:x instead of bare changes nothing (")
    assert "cannot be told" in _of(noisy, "runtime")[0].title
    assert _of(noisy, "runtime")[0].strength < _of(quiet, "runtime")[0].strength


def test_findings_come_in_the_order_of_what_they_are_worth() -> None:
    found = compute_findings(
        sweep(varied(POINT, "workers", [0, 1, 2, 3]) + varied(POINT, "pinned", [True]), _stalls, QUIET), PLAN
    )
    assert [one.strength for one in found] == sorted((one.strength for one in found), reverse=True)
    assert [one.kind for one in found].index("workers") < [one.kind for one in found].index("pinned")


def test_where_the_time_goes_is_called_bound_only_above_half() -> None:
    stalled = compute_findings(sweep([POINT], lambda _: Truth(stall_s=0.009, compute_s=0.003), QUIET), PLAN)
    mixed = compute_findings(
        sweep([POINT], lambda _: Truth(stall_s=0.004, compute_s=0.004, overhead_s=0.002), QUIET), PLAN
    )
    assert "An epoch is stall-bound: 69 % waiting for data, 23 % computing" in _of(stalled, "bound")[0].title
    assert "-bound" not in _of(mixed, "bound")[0].title


def test_the_fastest_setting_says_how_many_others_may_be_as_fast() -> None:
    alike = sweep(varied(POINT, "workers", [1, 2, 3]), lambda p: Truth(stall_s=0.009 if p.workers == 1 else 0.001))
    title = next(one.title for one in _of(compute_findings(alike, PLAN), "bound") if "fastest" in one.title)
    assert re.match(r"At the fastest setting \([23] workers; 1 other may be as fast\) an epoch is compute-bound", title)

    apart = sweep(varied(POINT, "workers", [1, 2]), _stalls, QUIET)
    title = next(one.title for one in _of(compute_findings(apart, PLAN), "bound") if "fastest" in one.title)
    assert title.startswith("At the fastest setting (2 workers) an epoch")


def test_the_knee_says_how_many_others_cannot_be_told_from_it() -> None:
    stats = sweep(varied(POINT, "workers", [0, 2, 3]), lambda p: Truth(stall_s=0.001 if p.workers else 0.009), QUIET)
    (found,) = _of(compute_findings(stats, PLAN), "plane")
    assert re.search(
        r"\(the knee of the front\) is [23] workers \(1 other cannot be told from it\); 1 of 3", found.title
    )


def test_every_figure_of_a_title_about_workers_stands_first_in_the_evidence() -> None:
    stats = sweep(varied(POINT, "workers", [0, 1, 2]), _stalls, QUIET)
    (found,) = _of(compute_findings(stats, PLAN), "workers")
    said = _claims(found.title)
    assert len(said) >= 4
    assert all(" workers, so" in line or " worker, so" in line for line in found.evidence[: len(said)])
    steps = [re.findall(r"with (no|1|2) workers?", line) for line in found.evidence[: len(said)]]
    assert all(step in (["no", "1"], ["1", "2"]) for step in steps)


def test_a_storage_that_the_cache_evens_out() -> None:
    def truth(point: SweepPoint) -> Truth:
        return Truth(first_stall_s=0.02 if point.storage == "sd" else 0.01)

    (finding,) = _of(compute_findings(sweep(varied(POINT, "storage", ["sd", "ssd"]), truth, QUIET), PLAN), "storage")
    assert "Reading from ssd instead of sd cuts the first epoch's stall by 50 %" in finding.title
    assert "later epochs take the same time" in finding.title


def test_where_one_epoch_is_all_there_is_its_figures_are_said_once() -> None:
    stats = sweep(
        varied(POINT, "storage", ["sd", "ssd"]),
        lambda p: Truth(stall_s=0.02 if p.storage == "sd" else 0.01),
        QUIET,
        epochs=1,
    )
    (finding,) = _of(compute_findings(stats, PLAN), "storage")
    assert [quantity for quantity, _ in _claims(finding.title)] == ["first_stall_s", "first_e2e_s"]


def _modes(gpu: list[float]) -> list[SweepPoint]:
    assert POINT.mode is not None
    return [replace(POINT, mode=replace(POINT.mode, gpu_mhz=one)) for one in gpu]


def test_the_cheapest_mode_against_the_top_one() -> None:
    def truth(point: SweepPoint) -> Truth:
        top = point.mode is not None and point.mode.gpu_mhz > 900
        return Truth(
            stall_s=0.0, compute_s=0.01 if top else 0.0115, copy_s=0.0, overhead_s=0.0, power_w=15.0 if top else 9.0
        )

    (finding,) = _of(compute_findings(sweep(_modes([921.6, 614.4]), truth, QUIET), PLAN), "energy")
    turned = "The GPU at 614.4 instead of 921.6 MHz, all else at the top,"
    assert finding.title.startswith(f"{turned} cuts the energy by 31 % but ")
    assert "but raises the epoch's time by 15 % (" in finding.title


def test_the_top_mode_that_is_the_cheapest() -> None:
    stats = sweep(
        _modes([921.6, 76.8]), lambda p: Truth(compute_s=0.01 if p.mode and p.mode.gpu_mhz > 900 else 0.1), QUIET
    )
    assert "Of 2 modes the top one" in _of(compute_findings(stats, PLAN), "energy")[0].title


def test_of_noise_no_mode_and_no_worker_is_said_to_save_energy() -> None:
    """Twelve sweeps in which the energy differs by some percent from point to point, and by chance alone."""
    points = _modes([921.6, 614.4, 307.2]) + varied(POINT, "workers", [1, 2])
    found = [
        finding
        for seed in range(12)
        for finding in compute_findings(sweep(points, lambda _: Truth(), Noise(epoch=0.05), seed=seed), PLAN)
        if finding.kind in {"energy", "pipelining"}
    ]
    assert len(found) <= 2


def test_pipelining_saves_energy_and_says_how_much() -> None:
    (finding,) = _of(compute_findings(sweep(varied(POINT, "workers", [0, 1, 2]), _stalls, QUIET), PLAN), "pipelining")
    assert finding.title.startswith("Loading beside the training (2 workers) cuts the energy by 50 % (")


def test_what_varies_within_and_between_boards() -> None:
    points = [replace(POINT, board=board, repeat=repeat) for board in ("nano-1", "nano-2") for repeat in range(2)]
    stats = sweep(
        points,
        lambda p: Truth(compute_s=0.01 + 0.001 * p.repeat + (0.002 if p.board == "nano-2" else 0)),
        Noise(step=0, power=0),
    )
    found = compute_findings(stats, PLAN)
    assert {one.board for one in _of(found, "varies-within")} == {"nano-1", "nano-2"}
    assert _of(found, "varies-between")[0].title.startswith("Between 2 boards of the kind nano the e")
    within = "the epoch's time differs by up to 7 % and the energy by up to 7 %, more than the minibatches explain"
    assert f"Over 2 repeats on nano-1 {within} (measured)." in [one.title for one in found]


def test_many_repeats_are_told_by_their_range() -> None:
    stats = sweep(
        [replace(POINT, repeat=repeat) for repeat in range(12)], lambda _: Truth(), Noise(epoch=0.05), steps=20
    )
    (finding,) = _of(compute_findings(stats, PLAN), "varies-within")
    assert (
        "training, mode 4c/1479/921.6/1600 MHz, batch 16, no workers, dropped cache: 12 repeats from 2"
        in (finding.evidence[0])
    )


def test_points_beside_which_others_worked_are_told() -> None:
    stats = sweep(varied(POINT, "workers", range(4)), lambda _: Truth())
    marked = [replace(one, parameters={"others_cores": 0.1 + i}) for i, one in enumerate(stats)]
    (found,) = _of(compute_findings(marked, PLAN), "disturbed")
    assert found.title.startswith("3 of 4 points were measured while other programs kept cores busy")
    assert "1.1 cores" in found.evidence[0]
    assert not _of(compute_findings(stats, PLAN), "disturbed")


def test_throttling_and_what_had_not_settled_are_told() -> None:
    def marked(one: PointStats, throttled: bool) -> PointStats:
        return replace(
            one, throttled=throttled, settled=not throttled, unsettled_reason="it drifts" if throttled else ""
        )

    stats = sweep(varied(POINT, "workers", range(4)), lambda _: Truth())
    found = compute_findings([marked(one, i == 2) for i, one in enumerate(stats)], PLAN)
    assert _of(found, "throttled")[0].title == "1 of 4 points was slowed by the board to protect itself (throttling)."
    assert "it drifts" in _of(found, "unsettled")[0].evidence[0]
    assert not _of(compute_findings(stats, PLAN), "throttled")


def test_the_same_step_in_other_settings_is_evidence() -> None:
    points = [replace(POINT, workers=w, storage=s) for w in (0, 1) for s in ("sd", "ssd")]
    (finding,) = _of(
        compute_findings(sweep(points, lambda p: Truth(stall_s=0.01 if p.workers == 0 else 0.004), QUIET), PLAN),
        "workers",
    )
    assert any(
        re.match(r"With mode .*, s?sd, dropped cache: it cuts the stall by 60 %", sentence)
        for sentence in finding.evidence
    )


def test_estimated_figures_are_called_estimated() -> None:
    stats = sweep(varied(POINT, "workers", [0, 1, 2, 3]), _stalls, QUIET, label="estimated")
    for finding in compute_findings(stats, PLAN):
        assert finding.label == "estimated"
        assert "measured" not in finding.title + "".join(finding.evidence)


def test_of_nothing_nothing_is_found() -> None:
    assert compute_findings([], PLAN) == ()


def test_every_knob_has_words_and_a_kind() -> None:
    for knob, own in values.items():
        stats = sweep(varied(replace(POINT, workers=1), knob, own[:2]), lambda _: Truth(), QUIET, steps=20)
        found = compute_findings(stats, PLAN)
        assert {one.kind for one in found} <= set(FINDING_KINDS)
        assert (knob if knob != "kind" else "inference") in {one.kind for one in found}
    assert set(values) | set(MODE_KNOBS) == {*ORDERED_KNOBS, *UNORDERED_KNOBS}


def test_a_knob_that_changes_the_watts_alone_is_told_last() -> None:
    stats = sweep(
        varied(POINT, "dvfs", [False, True]),
        lambda p: Truth(compute_s=0.007 if p.dvfs else 0.0071, power_w=15.4 if p.dvfs else 15.0),
        Noise(step=0.02, power=0.001),
    )
    (finding,) = _of(compute_findings(stats, PLAN), "dvfs")
    assert "raises the power by 3 %" in finding.title
    assert finding.strength < 0.01
