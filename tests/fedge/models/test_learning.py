"""Learning profiles what the explorer asks for, keeps within its budget, and scores on what was not profiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, grid
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.errors import BadInput
from fedge.evaluation.knowledge import Background
from fedge.explorers import EXPLORERS
from fedge.models import learning
from fedge.models.file import predict
from fedge.models.ground import Ground, ground_of_board, ground_of_table
from fedge.models.learning import MOST_ROWS, Wanted, learn, notes_of
from fedge.physics.knowledge import Knowledge
from fedge.physics.model import power_w, step_s
from fedge.types import Measurement, Modes, ProfileTable


def ground(every: int = 1) -> Ground:
    modes, truth = Modes(grid().knobs[::every]), another_workload(np.random.default_rng(3))
    seconds, watts = step_s(truth, MAXN, modes), power_w(truth, MAXN, modes)
    return ground_of_table(ProfileTable("b", "net", 16, modes, seconds, watts, "a" * 64, "b/net.csv"), None, "net.csv")


def test_so_many_modes_are_profiled_as_are_wanted_and_the_others_score_the_model():
    model, predictor = learn(ground(), Wanted("physical", explorer="random", modes=12))

    assert len(model.measurements) == 12
    assert len({seen.mode for seen in model.measurements}) == 12
    held_out = model.about.held_out
    assert held_out is not None
    assert held_out.modes == len(grid()) - 12
    truth, predictions = ground().truth, predict(model, predictor)
    rows = [row for row, mode in enumerate(truth.modes) if mode not in {seen.mode for seen in model.measurements}]
    errors = np.abs(predictions.step_s[rows] / truth.step_s[rows] - 1)
    assert held_out.time_mape == pytest.approx(errors.mean())
    assert held_out.time_mape < 0.2


def test_a_batch_is_measured_from_high_to_low_memory_clock():
    model, _ = learn(ground(), Wanted("physical", explorer="random", modes=15))

    memory = [seen.mode.mem_mhz for seen in model.measurements]
    assert memory == sorted(memory, reverse=True)


def test_the_origin_tells_what_profiling_took():
    model, _ = learn(ground(), Wanted("physical", explorer="random", modes=4))

    origin = model.about.origin
    assert origin.profiling_s == pytest.approx(sum(3.0 + 40 * seen.step_s for seen in model.measurements))
    assert origin.profiling_j == pytest.approx(
        sum((3.0 + 40 * seen.step_s) * seen.power_w for seen in model.measurements)
    )
    assert (origin.explorer, origin.rows, origin.label) == ("random", len(grid()), "measured")


def test_a_whole_small_table_is_learnt_from_and_leaves_nothing_to_score():
    model, _ = learn(ground(every=9), Wanted("physical"))

    assert len(model.measurements) == 70
    assert model.about.held_out is None
    assert model.about.origin.explorer is None


def test_of_a_large_table_a_slow_method_learns_from_some_rows_and_says_so():
    model, _ = learn(ground(), Wanted("physical", seed=1))
    other, _ = learn(ground(), Wanted("physical", seed=2))

    assert len(model.measurements) == MOST_ROWS
    assert model.measurements != other.measurements
    assert str(MOST_ROWS) in notes_of(ground(), Wanted("physical"))[0]
    assert notes_of(ground(), Wanted("linear")) == ()
    assert notes_of(ground(every=9), Wanted("physical")) == ()


@given(seconds=st.floats(5.0, 400.0), joules=st.none() | st.floats(100.0, 5000.0), seed=st.integers(0, 5))
@settings(max_examples=20)
def test_profiling_never_exceeds_its_budgets(seconds: float, joules: float | None, seed: int) -> None:
    wanted = Wanted("physical", seed, "random", 20, seconds, joules)
    try:
        model, _ = learn(ground(every=9), wanted)
    except BadInput as error:
        assert "--cost" in error.where  # noqa: PT017 - too little for any mode
        return

    origin = model.about.origin
    assert origin.profiling_s <= seconds * (1 + 1e-9)
    assert joules is None or origin.profiling_j <= joules * (1 + 1e-9)


@pytest.mark.parametrize(("option", "more"), [("--cost-s", {"cost_s": 3.1}), ("--cost-j", {"cost_j": 1.0})])
def test_a_budget_for_no_mode_at_all_says_what_one_takes(option, more):
    with pytest.raises(BadInput, match=f"{option}: .* at least .* what profiling one mode takes"):
        learn(ground(), Wanted("physical", explorer="random", **more))


def test_an_emulated_board_keeps_its_budget_in_spite_of_noise():
    for seed in range(3):
        model, _ = learn(
            ground_of_board("orin-nano", "resnet18-imagenet", seed), Wanted("physical", seed, "random", cost_s=120.0)
        )

        assert model.about.origin.profiling_s <= 120.0


def test_what_an_emulated_board_draws_at_rest_is_known():
    board = ground_of_board("orin-nano", "resnet18-imagenet", 0)

    model, _ = learn(board, Wanted("physical", explorer="random", modes=2))

    assert board.idle is not None
    assert model.knowledge.idle_w == board.idle.value
    assert model.about.idle == board.idle


@pytest.mark.parametrize(("method", "where"), [("physical", "--prior-without"), ("fedge", "prior")])
def test_a_method_that_starts_from_a_prior_says_so_where_none_is_left(method, where):
    bare = dataclasses.replace(ground(), background=Background(Knowledge(MAXN), (), (), ()))

    with pytest.raises(BadInput) as error:
        learn(bare, Wanted(method, explorer="random", modes=3))

    assert where in error.value.where


class _Stubborn:
    """Asks for the same two modes over and over."""

    def __init__(self, candidates: Modes, knowledge: Knowledge) -> None:
        self.candidates = candidates

    def ask(self, count: int) -> Modes:
        return Modes(self.candidates.knobs[:2])

    def tell(self, measurements: Sequence[Measurement]) -> None:
        assert measurements


def test_an_explorer_that_repeats_itself_ends_the_profiling(monkeypatch):
    monkeypatch.setattr(learning, "explorer_for", lambda name, modes, knowledge, where: _Stubborn(modes, knowledge))

    model, _ = learn(ground(), Wanted("physical", explorer="stubborn", modes=10))

    assert len(model.measurements) == 2


@pytest.mark.parametrize("explorer", sorted(EXPLORERS))
def test_every_explorer_serves(explorer):
    model, _ = learn(ground(every=9), Wanted("physical", explorer=explorer, modes=5))

    assert len({seen.mode for seen in model.measurements}) == 5


def test_the_seed_fixes_everything():
    first, second = (learn(ground(), Wanted("physical", 4, "random", 6))[0] for _ in range(2))

    assert first.measurements == second.measurements
    assert first.about == second.about
    assert first.knowledge.seed == second.knowledge.seed == 4
