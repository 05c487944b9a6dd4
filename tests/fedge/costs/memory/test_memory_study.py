"""The processes follow what is smooth or shared, and keep single offsets and wild steps to themselves.

The study learns from what it may and is judged on the rest; on the measured tables it reaches what is claimed.
"""

from dataclasses import replace

import numpy as np
import pytest
from contracts.measured_steps import write_folder

from fedge.costs.memory import memory_study
from fedge.costs.memory.memory_study import (
    TARGETS,
    TRAIN_LEVELS,
    MemoryErrorRow,
    MemoryStudy,
    build_transfer_points,
    list_scale_candidates,
    predict_smooth_residuals,
    predict_transferred_residuals,
)
from fedge.costs.memory.step_table import MeasuredSteps, StepTable, gather_steps, read_step_tables
from fedge.errors import BadInput, UnknownName
from fedge.types import Floats

SCALES = (0.02, 0.05, 0.05, 0.5)


def places(levels: list[float]) -> np.ndarray:
    return np.array([[level, batch] for level in levels for batch in np.log([2, 8, 16, 32, 64, 128])])


def test_a_smooth_curve_is_carried_to_levels_between():
    at, between = places([0.0, 0.2, 0.4, 0.6, 0.8]), places([0.3, 0.5])

    def curve(where: np.ndarray) -> np.ndarray:
        return 0.08 * np.sin(3 * where[:, 0]) + 0.03 * np.cos(where[:, 1])

    found = predict_smooth_residuals(at, curve(at), list_scale_candidates(*SCALES), between)
    assert np.abs(found - curve(between)).max() < 0.02


def test_a_level_that_is_off_by_itself_does_not_pull_its_neighbours():
    at = places([0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9])
    offsets = {0.15: 0.1, 0.45: -0.12, 0.75: 0.15}
    residual = np.array([offsets.get(level, 0.0) for level in at[:, 0]])
    found = predict_smooth_residuals(at, residual, list_scale_candidates(*SCALES), places([0.7]))
    assert np.abs(found).max() < 0.075  # half of its neighbour's offset


def test_one_wild_step_changes_little():
    at = places([0.0, 0.3, 0.6])
    residual = np.zeros(len(at))
    residual[7] = 2.0
    found = predict_smooth_residuals(at, residual, list_scale_candidates(*SCALES), places([0.3]))
    assert np.abs(found).max() < 0.1


def test_what_networks_have_in_common_is_followed_and_returns_to_zero_far_away():
    at = np.random.default_rng(0).uniform(0.0, 2.0, (40, 3))
    residual = np.full(40, 0.2)
    assert predict_transferred_residuals(at, residual, at).mean() == pytest.approx(0.2, abs=0.06)
    assert np.abs(predict_transferred_residuals(at, residual, at + 30.0)).max() < 1e-6


def test_a_place_is_batch_traffic_per_image_and_intensity():
    terms = np.array([[1.0, 8.0, 0.0, 0.0, 400.0, 0.0]])
    assert build_transfer_points(terms, np.array([1200.0]))[0] == pytest.approx(np.log([8.0, 50.0, 3.0]))


PUBLISHED = {"resnet18": (7.2, 6.5), "resnet50": (1.8, 3.5), "mobilenetv2": (3.3, 7.6), "squeezenet": (3.7, 5.5)}
"""perf4sight within a network, memory and latency: an independent implementation's figures on the same tables."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[StepTable, ...]:
    return read_step_tables(write_folder(tmp_path_factory.mktemp("steps")))


def mean(rows: list[MemoryErrorRow], method: str, split: str, target: str) -> float:
    return float(np.mean([r.mape for r in rows if (r.method, r.split, r.target) == (method, split, target)]))


def test_a_row_per_method_split_network_and_target(tables):
    rows = MemoryStudy(tables, ["fedge"], left_out=True).run()
    assert [(r.split, r.network, r.target) for r in rows] == [
        (split, table.network, target) for split in ("within", "left-out") for table in tables for target in TARGETS
    ]
    for row in rows:
        table = next(t for t in tables if t.network == row.network)
        measured = np.isfinite(table.memory_mb if row.target == "memory" else table.step_ms)
        judged = measured & ~np.isin(table.pruned_pct, TRAIN_LEVELS) if row.split == "within" else measured
        assert row.n == judged.sum()


def test_a_law_of_the_same_kind_is_found(tables):
    rows = MemoryStudy(tables, ["fedge"], left_out=True).run()
    assert mean(rows, "fedge", "within", "memory") < 2.5
    assert mean(rows, "fedge", "within", "latency") < 4.0
    assert mean(rows, "fedge", "left-out", "memory") < 7.0
    assert mean(rows, "fedge", "left-out", "latency") < 10.0


@pytest.mark.parametrize("split", ["within", "left-out"])
def test_nothing_is_learnt_from_what_is_judged(tables, split, monkeypatch):
    """A method gets no step that it is judged on, and none that ran out of memory."""
    seen: list[tuple[set[tuple[str, float]], set[tuple[str, float]]]] = []

    def spy(learn: MeasuredSteps, judge: MeasuredSteps, target: str, how: str, seed: int) -> Floats:
        assert np.isfinite(learn.measured[target]).all()
        if how == split:
            pairs = [set(zip(s.network.tolist(), s.level.tolist(), strict=True)) for s in (learn, judge)]
            seen.append((pairs[0], pairs[1]))
        return np.ones(len(judge.level))

    monkeypatch.setitem(memory_study.METHODS, "spy", spy)
    MemoryStudy(tables, ["spy"], left_out=True).run()
    assert len(seen) == 2 * len(tables)
    for learn, judge in seen:
        assert not learn & judge
        if split == "left-out":
            assert not {network for network, _ in learn} & {network for network, _ in judge}
        else:
            assert {level for _, level in learn} <= set(TRAIN_LEVELS)


@pytest.mark.parametrize("method", ["fedge", pytest.param("perf4sight", marks=pytest.mark.slow)])
def test_what_a_judged_step_measured_changes_no_prediction(tables, method):
    steps = gather_steps(tables[1:2])
    there = steps[np.isfinite(steps.measured["memory"]) & np.isfinite(steps.measured["latency"])]
    trained = np.isin(there.level, TRAIN_LEVELS)
    judge = there[~trained]
    blind = replace(judge, measured={name: np.full_like(v, 1.0) for name, v in judge.measured.items()})
    for target in TARGETS:
        one, other = (memory_study.METHODS[method](there[trained], j, target, "within", 0) for j in (judge, blind))
        assert np.array_equal(one, other)


def test_what_cannot_be_judged_is_said_before_anything_is_computed(tables):
    with pytest.raises(UnknownName, match="perf4sight, fedge"):
        MemoryStudy(tables, ["magic"], left_out=False).run()
    with pytest.raises(BadInput, match="got 1 network; at least two"):
        MemoryStudy(tables[:1], ["fedge"], left_out=True).run()
    trained = replace(tables[0], pruned_pct=np.zeros_like(tables[0].pruned_pct))
    with pytest.raises(BadInput, match="no steps to learn from or to judge"):
        MemoryStudy([trained], ["fedge"], left_out=False).run()


@pytest.mark.slow
def test_perf4sight_reproduces_its_figures_on_the_measured_tables(profiles_root):
    tables = [t for t in read_step_tables(profiles_root / "perf4sight-tx2") if t.network in PUBLISHED]
    for row in MemoryStudy(tables, ["perf4sight"], left_out=False).run():
        assert row.mape == pytest.approx(PUBLISHED[row.network][TARGETS.index(row.target)], abs=1.0)


@pytest.mark.slow
def test_ours_keeps_its_errors_on_the_measured_tables(profiles_root):
    tables = [t for t in read_step_tables(profiles_root / "perf4sight-tx2") if t.network in PUBLISHED]
    rows = MemoryStudy(tables, ["fedge"], left_out=True).run()
    assert mean(rows, "fedge", "within", "memory") <= 2.5
    assert mean(rows, "fedge", "within", "latency") <= 4.1
    assert mean(rows, "fedge", "left-out", "memory") <= 7.0
    assert mean(rows, "fedge", "left-out", "latency") <= 10.0
