"""Learning profiles what the explorer asks for, keeps within its budget, and scores on what was not profiled."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, grid, made_up_table, write_table
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.errors import BadInput
from fedge.knowledge import model_training
from fedge.knowledge.model_file import predict_candidates
from fedge.knowledge.model_training import (
    MAX_ROWS,
    MODES_PER_BATCH,
    FitRequest,
    ModelFitOptions,
    fit_model,
    list_notes,
    train_model,
)
from fedge.knowledge.profiling_source import ProfilingSource, source_from_board, source_from_table
from fedge.knowledge.table_background import TableBackground
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.explorers import EXPLORERS
from fedge.predictors.table_board import TableBoard
from fedge.types import Floats, Measurement, Modes, PowerMode


def ground(every: int = 1) -> ProfilingSource:
    return source_from_table(made_up_table(another_workload(np.random.default_rng(3)), every), None, "net.csv")


def test_so_many_modes_are_profiled_as_are_wanted_and_the_others_score_the_model():
    model, predictor = train_model(ground(), FitRequest("physical", explorer="random", modes=12))

    assert len(model.measurements) == 12
    assert len({seen.mode for seen in model.measurements}) == 12
    held_out, origin = model.about.held_out, model.about.origin
    assert (origin.explorer, origin.rows, origin.label) == ("random", len(grid()), "measured")
    assert held_out.modes == len(grid()) - 12
    truth, predictions = ground().truth, predict_candidates(model, predictor)
    rows = [row for row, mode in enumerate(truth.modes) if mode not in {seen.mode for seen in model.measurements}]
    errors = np.abs(predictions.step_s[rows] / truth.step_s[rows] - 1)
    assert held_out.time_mape == pytest.approx(errors.mean())
    assert held_out.time_mape < 0.2


def test_a_batch_is_measured_from_high_to_low_memory_clock():
    model, _ = train_model(ground(), FitRequest("physical", explorer="random", modes=15))

    memory = [seen.mode.mem_mhz for seen in model.measurements]
    assert memory == sorted(memory, reverse=True)


def test_a_whole_small_table_is_learnt_from_and_leaves_nothing_to_score():
    model, _ = train_model(ground(every=9), FitRequest("physical"))

    assert len(model.measurements) == 70
    assert model.about.held_out is None
    assert model.about.origin.explorer is None


def test_of_a_large_table_a_slow_method_learns_from_some_rows_and_says_so():
    model, _ = train_model(ground(), FitRequest("physical", seed=1))
    other, _ = train_model(ground(), FitRequest("physical", seed=2))

    assert len(model.measurements) == MAX_ROWS
    assert model.measurements != other.measurements
    assert str(MAX_ROWS) in list_notes(ground(), FitRequest("physical"))[0]
    assert list_notes(ground(), FitRequest("linear")) == ()
    assert list_notes(ground(every=9), FitRequest("physical")) == ()


def slower(by: float | Floats) -> tuple[ProfilingSource, list[PowerMode]]:
    """A ground whose modes take ``by`` times as long, and the modes measured there."""
    usual, asked = ground(every=9), list[PowerMode]()
    truth = dataclasses.replace(usual.truth, step_s=by * usual.truth.step_s)
    board = TableBoard(truth)

    def measure(mode: PowerMode) -> Measurement:
        asked.append(mode)
        return board.measure(mode)

    return dataclasses.replace(usual, truth=truth, measure=measure), asked


@given(
    by=st.sampled_from([0.3, 1.0, 4.0]),
    seconds=st.floats(5.0, 400.0),
    joules=st.none() | st.floats(100.0, 5000.0),
    method=st.sampled_from(["physical", "linear"]),
    seed=st.integers(0, 5),
)
@settings(max_examples=30, deadline=None)
def test_profiling_never_exceeds_its_budgets(by, seconds, joules, method, seed):
    board, asked = slower(by)
    try:
        model, _ = train_model(board, FitRequest(method, seed, "random", 20, seconds, joules))
    except BadInput as error:
        assert "--budget" in error.where  # noqa: PT017 - too little for any mode
        return

    origin = model.about.origin
    took_s = sum(3.0 + 40 * seen.step_s for seen in model.measurements)
    took_j = sum((3.0 + 40 * seen.step_s) * seen.power_w for seen in model.measurements)
    assert origin.profiling_s <= seconds
    assert joules is None or origin.profiling_j <= joules
    if len(asked) == len(model.measurements):
        assert (origin.profiling_s, origin.profiling_j) == (pytest.approx(took_s), pytest.approx(took_j))
    else:
        assert len(asked) == len(model.measurements) + 1, "only the last one is broken off"
        share = max(origin.profiling_s / seconds, origin.profiling_j / (joules or np.inf))
        assert 0.5 <= share <= 1.0, "each mode counts by its larger share, so that the sums may both stay below 1"


@pytest.mark.parametrize("method", ["fedge", "physical", "linear"])
def test_what_modes_cost_that_were_not_measured_plays_no_part(method):
    wanted = FitRequest(method, 0, "random", cost_s=100.0)
    board, asked = slower(1.0)
    train_model(board, wanted)
    others, again = slower(np.array([1.0 if mode in asked else 0.01 for mode in board.truth.modes]))
    train_model(others, wanted)

    assert 3 < len(asked) < len(board.truth.modes)
    assert again == asked


def test_what_was_measured_improves_what_others_are_expected_to_cost():
    """A board ten times as slow as any prior says: the first measurements show it, and the rest still counts."""
    board, asked = slower(10.0)
    model, _ = train_model(board, FitRequest("fedge", 0, "random", cost_s=1500.0))

    seconds = sum(3.0 + 40 * seen.step_s for seen in model.measurements)
    assert len(model.measurements) > MODES_PER_BATCH
    assert seconds > 0.7 * 1500.0
    assert len(asked) <= len(model.measurements) + 1


def test_without_anything_known_beforehand_the_largest_cost_so_far_is_expected():
    bare, asked = slower(1.0)
    bare = dataclasses.replace(bare, background=TableBackground(PriorKnowledge(MAXN), (), (), ()))
    model, _ = train_model(bare, FitRequest("linear", 0, "random", cost_s=60.0))

    costs = [3.0 + 40 * seen.step_s for seen in model.measurements]
    assert len(asked) >= len(costs) > 1
    assert model.about.origin.profiling_s <= 60.0
    if len(asked) == len(costs):
        assert 60.0 - sum(costs) < max(costs), "another one was expected to fit"


@pytest.mark.parametrize(("option", "more"), [("--budget-s", {"cost_s": 2.9}), ("--budget-j", {"cost_j": 1.0})])
def test_a_budget_for_no_mode_at_all_says_what_one_takes(option, more):
    with pytest.raises(BadInput, match=f"{option}: .* at least .* what profiling one mode is expected to take"):
        train_model(ground(), FitRequest("physical", explorer="random", **more))


def test_what_an_emulated_board_draws_at_rest_is_known():
    board = source_from_board("orin-nano", "resnet18-imagenet", 0)

    model, _ = train_model(board, FitRequest("physical", explorer="random", modes=2))

    assert model.knowledge.idle_w == board.idle.value
    assert model.about.idle == board.idle


@pytest.mark.parametrize(("method", "where"), [("physical", "prior"), ("fedge", "prior")])
def test_a_method_that_starts_from_a_prior_says_so_where_none_is_left(method, where):
    bare = dataclasses.replace(ground(), background=TableBackground(PriorKnowledge(MAXN), (), (), ()))

    with pytest.raises(BadInput) as error:
        train_model(bare, FitRequest(method, explorer="random", modes=3))

    assert where in error.value.where


class _Stubborn:
    """Asks for the same two modes over and over."""

    def __init__(self, candidates: Modes, knowledge: PriorKnowledge) -> None:
        self.candidates = candidates

    def ask(self, count: int) -> Modes:
        return Modes(self.candidates.knobs[:2])

    def tell(self, measurements: Sequence[Measurement]) -> None:
        assert measurements


def test_an_explorer_that_repeats_itself_ends_the_profiling(monkeypatch):
    monkeypatch.setattr(
        model_training, "load_explorer", lambda name, modes, knowledge, where: _Stubborn(modes, knowledge)
    )

    model, _ = train_model(ground(), FitRequest("physical", explorer="stubborn", modes=10))

    assert len(model.measurements) == 2


@pytest.mark.parametrize("explorer", sorted(EXPLORERS))
def test_every_explorer_serves(explorer):
    model, _ = train_model(ground(every=9), FitRequest("physical", explorer=explorer, modes=5))

    assert len({seen.mode for seen in model.measurements}) == 5


def test_the_seed_fixes_everything():
    first, second = (train_model(ground(), FitRequest("physical", 4, "random", 6))[0] for _ in range(2))

    assert first.measurements == second.measurements
    assert first.about == second.about
    assert first.knowledge.seed == second.knowledge.seed == 4


@pytest.mark.parametrize(
    ("folder", "kind", "prior"), [("infer", None, True), ("train", None, False), ("train", "infer", True)]
)
def test_a_table_of_inference_starts_from_inference(tmp_path, folder, kind, prior):
    path = tmp_path / "tx2" / folder / "mine.csv"
    path.parent.mkdir(parents=True)
    write_table(path, rows=slice(None, None, 100))

    fitted = fit_model(ModelFitOptions(path, kind=kind))

    assert any(" infer b" in table for table in fitted.model.about.prior_tables) == prior


def test_a_kind_is_that_of_a_table():
    with pytest.raises(BadInput, match="--kind: got infer without a table"):
        fit_model(ModelFitOptions(board="tx2", workload="vit-b16-cifar10", kind="infer"))
