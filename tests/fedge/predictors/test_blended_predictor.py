"""The default predictor is better with a good reference, hardly worse with a bad one, and knows how sure it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from contracts.baselines import MadeUpBoard
from contracts.boards import MAXN, another_workload, coefficients, grid, made_up_table
from contracts.predictor import PredictorContract, columns, measured
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput
from fedge.knowledge.table_background import build_background
from fedge.modes import find_mode_index
from fedge.physics.misfit_process import FEW_MODES, QuantityRows
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import TIME_NAMES, Coefficients, compute_power_w, compute_step_s, knob_shares
from fedge.predictors import DEFAULT_PREDICTOR, kind_fit, load_predictor
from fedge.predictors.blended_predictor import BlendedPredictor
from fedge.predictors.candidate_blend import (
    MAX_ROWS_FOR_ALL_SPREADS,
    MIN_RELATIVE_WEIGHT,
    BoardFit,
    CandidateBlend,
    PooledFit,
)
from fedge.predictors.explorers.active_explorer import ActiveExplorer
from fedge.predictors.kind_fit import UpdatedFit
from fedge.protocols import Predictor
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions, ProfileTable

MODES = grid()
X = knob_shares(MAXN, MODES)
PATTERN_SD = 0.035
"""As far as measured boards lie off the smooth curve, log units."""
READING_SD = 0.01
KNOWN = PriorKnowledge(MAXN, (coefficients(),), idle_w=12.0)


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What a made-up board reads in every mode."""

    step_s: Floats
    power_w: Floats

    @property
    def table(self) -> ProfileTable:
        return dataclasses.replace(made_up_table(), step_s=self.step_s, power_w=self.power_w)

    def seen(self, rows: Sequence[int]) -> list[Measurement]:
        return measured(MODES, self.step_s, self.power_w, list(rows))

    def errors(self, said: Predictions, rows: Sequence[int] = ()) -> Floats:
        """Mean relative error of time and power over the modes that were not measured."""
        held = np.setdiff1d(np.arange(len(X)), rows)
        off = np.stack([said.step_s / self.step_s - 1, said.power_w / self.power_w - 1])
        error: Floats = np.abs(off[:, held]).mean(axis=1)
        return error

    def covered(self, said: Predictions, rows: Sequence[int] = ()) -> Floats:
        """Share of the modes that were not measured whose 90 % interval holds the truth."""
        held = np.setdiff1d(np.arange(len(X)), rows)
        off = np.log(np.stack([self.step_s / said.step_s, self.power_w / said.power_w]))
        sd = np.stack([said.step_s_sd_log, said.power_w_sd_log])
        share: Floats = (np.abs(off) < 1.645 * sd)[:, held].mean(axis=1)
        return share


def pattern(seed: int, sd: float = PATTERN_SD) -> Floats:
    """What a kind of board adds to the smooth curve, log units (n,): single clocks that are off, and slow waves."""
    rng = np.random.default_rng(seed)
    off = np.zeros(len(X))
    for knob in X.T:
        values, which = np.unique(knob, return_inverse=True)
        off += rng.standard_normal(len(values))[which]
    for direction in 2.0 * rng.standard_normal((3, 4)):
        off += np.sin(np.log(X) @ direction + rng.uniform(0.0, 6.0))
    scaled: Floats = sd * off / off.std()
    return scaled


def board(seed: int, kind: int | None = None, sd: float = PATTERN_SD) -> Truth:
    """A workload of its own on a board of that ``kind``; without a kind the curve is smooth."""
    rng = np.random.default_rng(seed)
    truth = another_workload(rng)
    noise = READING_SD * rng.standard_normal((2, len(X)))
    time, power = (0.0, 0.0) if kind is None else (pattern(1000 + kind, sd), pattern(2000 + kind, sd))
    return Truth(
        compute_step_s(truth, MAXN, MODES) * np.exp(time + noise[0]),
        compute_power_w(truth, MAXN, MODES) * np.exp(power + noise[1]),
    )


def some(seed: int, count: int) -> list[int]:
    return [int(row) for row in np.random.default_rng(seed).permutation(len(X))[:count]]


def learnt(measurements: Sequence[Measurement], known: PriorKnowledge = KNOWN) -> Predictions:
    return BlendedPredictor(known).fit(measurements).predict(MODES)


def with_reference(*tables: ProfileTable) -> PriorKnowledge:
    return dataclasses.replace(KNOWN, references=tables)


BOARDS = [board(seed, kind=seed) for seed in range(8)]


class TestBlendedPredictorWithPriors(MadeUpBoard, PredictorContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return BlendedPredictor(
            PriorKnowledge(MAXN, (coefficients(), another_workload(np.random.default_rng(1))), (), 12.0)
        )


REFERENCE = board(77, kind=0).table


class TestBlendedPredictorWithAPriorAndAReference(MadeUpBoard, PredictorContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return BlendedPredictor(with_reference(REFERENCE))


class TestBlendedPredictorWithAReferenceOnly(MadeUpBoard, PredictorContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return BlendedPredictor(PriorKnowledge(MAXN, references=(REFERENCE,)))


def test_it_is_the_default():
    assert isinstance(load_predictor(DEFAULT_PREDICTOR, KNOWN), BlendedPredictor)


@given(
    st.lists(st.tuples(st.integers(0, 629), st.floats(0.3, 3.0), st.floats(0.5, 2.0)), max_size=7),
    st.sampled_from([KNOWN, with_reference(REFERENCE)]),
)
@settings(max_examples=40)
def test_weights_sum_to_one_the_most_probable_first_whatever_was_measured(seen, known):
    truth = board(3)
    measurements = [
        Measurement(MODES[i], 40, a * float(truth.step_s[i]), b * float(truth.power_w[i])) for i, a, b in seen
    ]

    predictor = BlendedPredictor(known).fit(measurements)

    assert isinstance(predictor.fit_, PooledFit)
    for blend in (predictor.fit_.time, predictor.fit_.power):
        weights = np.concatenate([group.weights for group in blend.groups])
        assert weights.sum() == pytest.approx(1.0)
        assert weights.min() >= MIN_RELATIVE_WEIGHT * weights.max()
        assert weights.max() == weights[0]
        for group in blend.groups:
            assert (np.diff(group.weights) <= 0).all()
            assert len(group.weights) == len(group.posterior.best)
    for column in columns(predictor.predict(MODES)):
        assert np.isfinite(column).all()
        assert (column > 0).all()


def test_the_same_measurements_give_the_same_bits():
    seen = board(4, kind=0).seen(some(4, 10))

    once, again = (columns(learnt(seen, with_reference(REFERENCE))) for _ in range(2))

    for first, second in zip(once, again, strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_prior_that_explains_the_measurements_takes_over():
    other = another_workload(np.random.default_rng(8), time_sd=0.8, power_sd=0.3)
    truth = Truth(compute_step_s(other, MAXN, MODES), compute_power_w(other, MAXN, MODES))
    both, wrong = PriorKnowledge(MAXN, (coefficients(), other)), PriorKnowledge(MAXN, (coefficients(),))
    rows = some(8, 4)

    with_it, without = (truth.errors(learnt(truth.seen(rows), known), rows) for known in (both, wrong))

    assert (with_it < 0.5 * without).all()
    assert with_it.max() < 0.02


@pytest.mark.parametrize("count", [3, 10])
def test_more_measurements_lower_the_error(count):
    before, after = (
        np.mean([truth.errors(learnt(truth.seen(some(s, n))), some(s, n)) for s, truth in enumerate(BOARDS)], axis=0)
        for n in (count, 3 * count)
    )

    assert (after < 0.85 * before).all()


@cache
def like(seed: int) -> ProfileTable:
    """Another workload on the board of that ``seed`` in ``BOARDS``; the same object each time, so studied once."""
    return board(50 + seed, kind=seed).table


@cache
def error_of_ten(seed: int, *references: ProfileTable) -> Floats:
    """Errors of ``BOARDS[seed]`` after ten measurements, with these references beside the prior."""
    rows = some(seed, 10)
    return BOARDS[seed].errors(learnt(BOARDS[seed].seen(rows), with_reference(*references)), rows)


def test_a_good_reference_on_the_same_board_lowers_the_error():
    with_it, without = np.mean([(error_of_ten(seed, like(seed)), error_of_ten(seed)) for seed in range(8)], axis=0)

    print(f"time and power error: {with_it} with a reference, {without} without")
    assert (with_it < 0.85 * without).all()


def test_a_good_reference_helps_also_when_a_bad_one_comes_first():
    good = [like(seed) for seed in range(5)]
    both = [error_of_ten(seed, spoilt(table, "upside down", seed), table) for seed, table in enumerate(good)]
    alone = [error_of_ten(seed, table) for seed, table in enumerate(good)]
    both, alone = np.mean([both, alone], axis=1)

    assert (both < 1.1 * alone).all()


def spoilt(table: ProfileTable, how: str, seed: int) -> ProfileTable:
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    noise = np.exp(0.3 * rng.standard_normal((2, len(X))))
    few = order[:4]
    return {
        "shuffled": lambda: dataclasses.replace(table, step_s=table.step_s[order], power_w=table.power_w[order]),
        "upside down": lambda: dataclasses.replace(table, step_s=0.01 / table.step_s, power_w=400.0 / table.power_w),
        "noisy": lambda: dataclasses.replace(table, step_s=table.step_s * noise[0], power_w=table.power_w * noise[1]),
        "constant": lambda: dataclasses.replace(table, step_s=np.full(len(X), 0.1), power_w=np.full(len(X), 20.0)),
        "another kind's": lambda: board(90 + seed, kind=500 + seed).table,
        "four rows": lambda: dataclasses.replace(
            table, modes=Modes(MODES.knobs[few]), step_s=table.step_s[few], power_w=table.power_w[few]
        ),
    }[how]()


@pytest.mark.parametrize(
    ("how", "most"),
    [
        ("shuffled", 1.1),
        ("upside down", 1.1),
        ("noisy", 1.1),
        ("constant", 1.1),
        ("four rows", 1.1),
        # Smooth, and with the clocks of the board: nothing but the measurements can tell that it is of another kind.
        ("another kind's", 1.25),
    ],
)
def test_a_bad_reference_hardly_raises_the_error(how, most):
    off = [(error_of_ten(seed, spoilt(like(seed), how, seed)), error_of_ten(seed)) for seed in range(4)]
    with_it, without = np.mean(off, axis=0)

    print(f"{how}: {with_it} with it, {without} without")
    assert (with_it < most * without).all()


def test_a_reference_without_any_prior_is_enough():
    known = PriorKnowledge(MAXN, references=(REFERENCE,))
    truth = board(6, kind=0)

    none, ten = (truth.errors(learnt(truth.seen(some(6, n)), known), some(6, n)) for n in (0, 10))

    assert (ten < none).all()
    assert ten.max() < 0.07


def test_a_reference_three_times_as_slow_helps_like_one_that_is_as_fast():
    good = [like(seed) for seed in range(8)]
    slow = [dataclasses.replace(table, step_s=3.0 * table.step_s) for table in good]
    as_fast, slower = (
        np.mean([error_of_ten(seed, table)[0] for seed, table in enumerate(tables)]) for tables in (good, slow)
    )

    assert slower < 1.25 * as_fast


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_an_outlier_among_fifteen_does_not_bend_the_rest(factor):
    moved = []
    for seed, truth in enumerate(BOARDS):
        rows = some(seed, 15)
        seen = truth.seen(rows)
        wrong = [dataclasses.replace(seen[0], step_s=factor * seen[0].step_s), *seen[1:]]
        clean, bent, fourteen = (truth.errors(learnt(m), rows) for m in (seen, wrong, seen[1:]))
        moved.append((clean[0], bent[0], fourteen[0]))
    clean, bent, fourteen = np.mean(moved, axis=0)

    print(f"time error: clean {clean:.3f}, with an outlier {bent:.3f}, without that row {fourteen:.3f}")
    assert bent < max(clean, fourteen) + 0.01


def test_before_anything_is_measured_the_intervals_hold_the_truth():
    covered = [truth.covered(learnt([])) for truth in BOARDS]

    assert (np.mean(covered, axis=0) > 0.85).all()


@pytest.mark.parametrize("count", [3, 10, 30])
def test_nine_intervals_in_ten_hold_the_truth(count):
    """On boards that lie off the smooth curve as far as most modes of measured ones do."""
    covered = []
    for seed in range(10):
        truth, rows = board(300 + seed, kind=seed, sd=0.02), some(seed, count)
        covered.append(truth.covered(learnt(truth.seen(rows)), rows))

    print(f"{count} modes: {np.mean(covered, axis=0)}")
    assert (np.mean(covered, axis=0) > 0.80).all()
    assert (np.mean(covered, axis=0) < 0.985).all()


@pytest.mark.parametrize("count", [3, 10, 30])
def test_nine_intervals_in_ten_hold_the_truth_with_a_reference(count):
    covered = []
    for seed, truth in enumerate(BOARDS):
        rows, known = some(seed, count), with_reference(like(seed))
        covered.append(truth.covered(learnt(truth.seen(rows), known), rows))

    print(f"{count} modes: {np.mean(covered, axis=0)}")
    assert (np.mean(covered, axis=0) > 0.80).all()
    assert (np.mean(covered, axis=0) < 0.985).all()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_from_one_measurement_on_the_prediction_is_better_than_the_prior(count):
    off = []
    for seed, truth in enumerate(BOARDS):
        slow = Truth(3.0 * truth.step_s, truth.power_w)
        rows = some(seed, count)
        off.append([slow.errors(learnt(slow.seen(n)), rows)[0] for n in ([], rows)])
    before, after = np.mean(off, axis=0)

    assert after < 0.6 * before


def test_many_measurements_of_one_mode_tell_of_that_mode_and_leave_the_board_open():
    truth = board(7)
    one = int(some(7, 1)[0])

    once, often = learnt(truth.seen([one])), learnt(truth.seen([one] * 40))

    assert often.step_s[one] == pytest.approx(truth.step_s[one], rel=0.01)
    assert often.power_w[one] == pytest.approx(truth.power_w[one], rel=0.01)
    assert np.median(often.step_s_sd_log) > 0.8 * np.median(once.step_s_sd_log)


@pytest.mark.parametrize("known", [KNOWN, with_reference(REFERENCE)], ids=["prior", "reference"])
def test_measurements_without_any_variance_are_believed(known):
    rows = some(9, 12)
    seen = [Measurement(MODES[row], 40, 0.25, 22.0) for row in rows]

    said = learnt(seen, known)

    np.testing.assert_allclose(said.step_s[rows], 0.25, rtol=0.25)
    np.testing.assert_allclose(said.power_w[rows], 22.0, rtol=0.25)
    for column in columns(said):
        assert np.isfinite(column).all()
        assert (column > 0).all()


@pytest.mark.parametrize(("seconds", "watts"), [(1e-4, 0.5), (1e-4, 60.0), (100.0, 0.5), (100.0, 60.0)])
def test_boards_of_any_size_are_learnt_when_the_prior_is_of_that_size(seconds, watts):
    truth = board(10)
    times, powers = seconds / np.median(truth.step_s), watts / np.median(truth.power_w)
    here = Truth(truth.step_s * times, truth.power_w * powers)
    known = PriorKnowledge(MAXN, (scaled(times, powers),))
    rows = some(10, 10)

    assert here.errors(learnt(here.seen(rows), known), rows).max() < 0.05


@pytest.mark.parametrize(("times", "powers"), [(0.01, 1.0), (1.0, 0.1)])
def test_a_board_far_from_the_prior_is_believed_when_two_modes_say_so(times, powers):
    modes = some(1, 2)
    truth = another_workload(np.random.default_rng(9))
    far = Truth(times * compute_step_s(truth, MAXN, MODES), powers * compute_power_w(truth, MAXN, MODES))

    said = learnt(far.seen(modes))

    np.testing.assert_allclose(said.step_s[modes], far.step_s[modes], rtol=0.5)
    np.testing.assert_allclose(said.power_w[modes], far.power_w[modes], rtol=0.5)


def scaled(times: float, powers: float) -> Coefficients:
    """The prior with all seconds and all watts multiplied."""
    seconds = np.array([name.endswith("_s") for name in TIME_NAMES])
    watts = np.array([1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 0], dtype=np.float64)
    base = coefficients()
    return Coefficients(base.time + np.log(times) * seconds, base.power + np.log(powers) * watts)


def test_a_board_of_one_core_count_and_one_memory_clock_is_learnt():
    fixed = np.flatnonzero((MODES.knobs[:, 0] == 8) & (MODES.knobs[:, 3] == 3000.0))
    truth = board(11)
    rows = [int(row) for row in fixed[::4]]

    said = learnt(truth.seen(rows))

    off = np.abs(said.step_s[fixed] / truth.step_s[fixed] - 1)
    assert off.mean() < 0.03
    assert np.abs(said.power_w[fixed] / truth.power_w[fixed] - 1).mean() < 0.03


def test_no_mode_at_all_can_be_asked():
    said = BlendedPredictor(KNOWN).fit(board(1).seen([1, 2])).predict(Modes(np.empty((0, 4))))

    assert [column.shape for column in columns(said)] == [(0,)] * 4


def test_a_mode_outside_the_measured_grid_is_predicted():
    between = PowerMode(3, 777.0, 555.0, 1111.0)
    truth = another_workload(np.random.default_rng(12))
    alone = Modes(np.array([[between.cores, between.cpu_mhz, between.gpu_mhz, between.mem_mhz]]))
    smooth = Truth(compute_step_s(truth, MAXN, MODES), compute_power_w(truth, MAXN, MODES))

    said = BlendedPredictor(with_reference(REFERENCE)).fit(smooth.seen(some(12, 30))).predict(alone)

    assert said.step_s[0] == pytest.approx(compute_step_s(truth, MAXN, alone)[0], rel=0.06)
    assert said.power_w[0] == pytest.approx(compute_power_w(truth, MAXN, alone)[0], rel=0.06)


# What other boards of the kind measured


def by(name: str, truth: Truth, rows: Sequence[int], slower: float = 1.0, hungrier: float = 1.0) -> list[Measurement]:
    return [
        dataclasses.replace(seen, board=name, step_s=slower * seen.step_s, power_w=hungrier * seen.power_w)
        for seen in truth.seen(rows)
    ]


def test_another_boards_measurements_teach_the_shape_but_leave_the_level_open():
    levels, shapes = [], []
    for seed, truth in enumerate(BOARDS):
        rows = some(seed, 40)
        said, own = learnt(by("b", truth, rows, slower=1.05)), learnt(truth.seen(rows))
        off = np.log(said.step_s / truth.step_s)
        levels.append(off.mean())
        shapes.append(off.std())
        assert np.median(said.step_s_sd_log) > np.median(own.step_s_sd_log) + 0.02
        assert np.median(said.power_w_sd_log) > np.median(own.power_w_sd_log) + 0.02

    assert 0.02 < np.mean(levels) < 0.06
    assert np.mean(shapes) < 0.04


def test_one_measurement_of_its_own_then_fixes_the_level():
    before, after = [], []
    for seed in range(10):
        truth = board(400 + seed)
        *rows, own = some(seed, 41)
        others = by("b", truth, rows, slower=1.05, hungrier=0.95)
        for levels, seen in ((before, others), (after, [*others, *truth.seen([own])])):
            said = learnt(seen)
            levels.append([np.log(said.step_s / truth.step_s).mean(), np.log(said.power_w / truth.power_w).mean()])

    assert (np.abs(np.mean(before, axis=0)) > 0.03).all()
    assert (np.abs(np.mean(after, axis=0)) < 0.02).all()


def test_ten_boards_of_three_modes_each_come_close_to_one_board_of_thirty():
    off: dict[str, list[Floats]] = {"shared": [], "thirty": [], "ten": [], "three": []}
    for seed, truth in enumerate(BOARDS):
        rng, rows = np.random.default_rng(seed), some(seed, 30)
        shared = truth.seen(rows[:3])
        for place in range(1, 10):
            slower, hungrier = np.exp(0.04 * rng.standard_normal(2))
            shared += by(f"board {place}", truth, rows[3 * place : 3 * place + 3], float(slower), float(hungrier))
        off["shared"].append(truth.errors(learnt(shared), rows))
        for name, count in (("thirty", 30), ("ten", 10), ("three", 3)):
            off[name].append(truth.errors(learnt(truth.seen(rows[:count])), rows))
    mean = {name: np.mean(errors, axis=0) for name, errors in off.items()}

    print(mean)
    assert (mean["shared"] < mean["ten"]).all()
    assert (mean["shared"] < 1.35 * mean["thirty"]).all()
    assert (mean["shared"] < 0.75 * mean["three"]).all()


# Several boards at once


def seen_by(seed: int, count: int, with_peers: bool = False) -> list[Measurement]:
    """A board's own measurements of ``count`` modes; of its peers, half as many in other modes."""
    truth, rows = board(seed, kind=0), some(seed, 2 * count)
    own = truth.seen(rows[:count])
    if not with_peers:
        return own
    return [*own, *by("b", truth, rows[count::4], slower=1.05), *by("c", truth, rows[count + 1 :: 4], hungrier=0.95)]


SEVERAL = [
    (known, seen_by(600 + place, count, with_peers))
    for place, (known, count, with_peers) in enumerate(
        (known, count, with_peers)
        for known in (KNOWN, with_reference(REFERENCE), PriorKnowledge(MAXN, references=(REFERENCE,)))
        for count in (0, 1, 7, 8, 9, 20)
        for with_peers in (False, True)
    )
]
SEVERAL += [
    (known, [*seen_by(700 + count, count), *seen_by(710, 40, with_peers=True)[40:]])
    for known in (KNOWN, with_reference(REFERENCE))
    for count in (0, 1, 7)
]
"""What boards know and measured: with and without a reference table, with no, few and many measurements of peers."""


def assert_same_fit(one: BoardFit, other: BoardFit) -> None:
    if isinstance(one, PooledFit) and isinstance(other, PooledFit):
        assert_same_blend(one.time, other.time)
        assert_same_blend(one.power, other.power)
    else:
        assert isinstance(one, UpdatedFit)
        assert isinstance(other, UpdatedFit)
        assert one.kind is other.kind
        for first, second in ((one.time, other.time), (one.power, other.power)):
            assert first.members == second.members
            assert np.array_equal(first.weights, second.weights)


def assert_same_blend(one: CandidateBlend, other: CandidateBlend) -> None:
    assert len(one.groups) == len(other.groups)
    for first, second in zip(one.groups, other.groups, strict=True):
        assert np.array_equal(first.weights, second.weights)
        for field in dataclasses.fields(first.posterior):
            values = getattr(first.posterior, field.name), getattr(second.posterior, field.name)
            if field.name != "rows":
                assert np.array_equal(*values), field.name
                continue
            for column in dataclasses.fields(QuantityRows):
                assert np.array_equal(*(getattr(rows, column.name) for rows in values)), column.name


@given(st.lists(st.integers(0, len(SEVERAL) - 1), min_size=2, max_size=8))
@settings(max_examples=20)
def test_boards_that_are_fitted_together_believe_to_the_last_bit_what_each_believes_alone(places):
    boards = [SEVERAL[place] for place in places]
    together = [BlendedPredictor(known) for known, _ in boards]

    BlendedPredictor.fit_together(together, [seen for _, seen in boards])

    for predictor, (known, seen) in zip(together, boards, strict=True):
        alone = BlendedPredictor(known).fit(seen)
        assert_same_fit(predictor.fit_, alone.fit_)
        for first, second in zip(columns(predictor.predict(MODES)), columns(alone.predict(MODES)), strict=True):
            assert np.array_equal(first, second)


def test_a_predictor_that_was_fitted_together_can_be_fitted_again():
    predictors = [BlendedPredictor(KNOWN), BlendedPredictor(KNOWN)]
    BlendedPredictor.fit_together(predictors, [seen_by(1, 3), seen_by(2, 9)])
    BlendedPredictor.fit_together(predictors, [seen_by(3, 9), seen_by(4, 2)])

    for predictor, seen in zip(predictors, (seen_by(3, 9), seen_by(4, 2)), strict=True):
        assert_same_fit(predictor.fit_, BlendedPredictor(KNOWN).fit(seen).fit_)


@pytest.mark.parametrize("own", [0, 2, 8])
def test_own_measurements_added_to_a_fit_of_many_others_predict_as_well_as_a_fit_of_all(own, monkeypatch):
    errors: dict[int, list[tuple[float, float]]] = {0: [], 10_000: []}
    for seed, truth in enumerate(BOARDS):
        rows = some(seed, 44)
        seen = truth.seen(rows[:own])
        for place in range(12):
            level = float(np.exp(0.04 * np.random.default_rng((seed, place)).standard_normal()))
            seen += by(f"board {place}", truth, rows[8 + 3 * place : 11 + 3 * place], level, level)
        for least, found in errors.items():
            monkeypatch.setattr(kind_fit, "MIN_PEER_ROWS", least)
            fitted = BlendedPredictor(KNOWN).fit(seen)
            assert isinstance(fitted.fit_, UpdatedFit if least == 0 else PooledFit)
            said = fitted.predict(MODES)
            logs = np.log(said.step_s / truth.step_s), np.log(said.power_w / truth.power_w)
            found.append((float(np.abs(logs[0]).mean()), float(np.abs(logs[1]).mean())))
    added, pooled = (np.mean(found, axis=0) for found in errors.values())

    print(own, added, pooled)
    assert (added < 1.1 * pooled + 0.001).all()


def test_one_board_without_prior_and_reference_is_bad_input_for_all():
    with pytest.raises(BadInput, match="at least one calibrated workload or one reference table"):
        BlendedPredictor.fit_together([BlendedPredictor(KNOWN), BlendedPredictor(PriorKnowledge(MAXN))], [[], []])


# Measured boards


def on_a_real_table(target: Path, reference: Path, seed: int, count: int = 10) -> tuple[float, float]:
    """Error of time and power on the modes that were not among the explorer's own."""
    table = read_mode_table(target)
    knowledge = dataclasses.replace(build_background(table, [read_mode_table(reference)]).knowledge, seed=seed)
    rows = [find_mode_index(table.modes, mode) or 0 for mode in ActiveExplorer(table.modes, knowledge).ask(count)]
    seen = measured(table.modes, table.step_s, table.power_w, rows)
    said = BlendedPredictor(knowledge).fit(seen).predict(table.modes)
    held = np.setdiff1d(np.arange(len(table.modes)), rows)
    return (
        float(np.mean(np.abs(said.step_s / table.step_s - 1)[held])),
        float(np.mean(np.abs(said.power_w / table.power_w - 1)[held])),
    )


def test_ten_modes_of_its_own_choice_tell_the_others_of_a_real_board(profiles_root):
    folder = profiles_root / "agx-orin" / "train"
    target, reference = folder / "mobilenetv3l-gld23k.csv", folder / "resnet18-imagenet.csv"

    time_mape, power_mape = np.mean([on_a_real_table(target, reference, seed) for seed in range(3)], axis=0)

    print(f"MobileNet from ResNet: time {time_mape:.1%}, power {power_mape:.1%} after 10 modes")
    assert time_mape < 0.05
    assert power_mape < 0.035


@pytest.mark.parametrize("measured_rows", [3, MAX_ROWS_FOR_ALL_SPREADS + 5])
@pytest.mark.parametrize("chosen", [40, FEW_MODES + 10])
def test_spreads_of_chosen_modes_are_those_of_a_prediction_of_all(measured_rows, chosen):
    truth = Truth(compute_step_s(coefficients(), MAXN, MODES), compute_power_w(coefficients(), MAXN, MODES))
    rng = np.random.default_rng(0)
    predictor = BlendedPredictor(KNOWN).fit(truth.seen(rng.permutation(len(MODES))[:measured_rows].tolist()))
    rows = np.sort(rng.permutation(len(MODES))[:chosen])

    full, few = predictor.predict(MODES), predictor.predict_chosen(MODES, lambda _: rows)

    assert full.step_s.tolist() == few.step_s.tolist()
    assert full.power_w.tolist() == few.power_w.tolist()
    for every, some in ((full.step_s_sd_log, few.step_s_sd_log), (full.power_w_sd_log, few.power_w_sd_log)):
        np.testing.assert_allclose(some[rows], every[rows], rtol=1e-4)
        assert np.isnan(np.delete(some, rows)).all()
