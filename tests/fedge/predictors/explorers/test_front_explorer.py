"""The front explorer goes where energy may be saved within some limit on time, and finds it with few modes."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, coefficients, grid
from contracts.explorer import ExplorerContract, Make, known
from contracts.predictor import measured as measured_at

from fedge.decisions.measured_correction import correct_relative_to_row
from fedge.decisions.mode_objectives import find_least_energy_within_slowdown
from fedge.modes import find_mode_index
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.predictors.blended_predictor import BlendedPredictor
from fedge.predictors.explorers import load_explorer
from fedge.predictors.explorers.active_explorer import ActiveExplorer
from fedge.predictors.explorers.front_explorer import SLOWDOWNS, FrontExplorer, sum_expected_savings
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

TOP = find_mode_index(grid(), MAXN) or 0


class TestFrontExplorer(ExplorerContract):
    @pytest.fixture
    def make(self) -> Make:
        return FrontExplorer


def predictions(slowdown: list[float], energy: list[float], sd_log: float) -> Predictions:
    """Of modes with these times and energies, relative to the first."""
    step_s, spread = np.array(slowdown), np.full(len(slowdown), sd_log)
    modes = Modes(grid().knobs[: len(slowdown)])
    return Predictions(modes, step_s, 20.0 * np.array(energy) / step_s, spread, spread)


def test_a_mode_is_worth_what_it_may_save_within_the_limits_that_it_keeps():
    saving, slow, dear = 1.0 - 0.8, 1.6, 1.1

    worth = sum_expected_savings(predictions([1.0, 1.01, slow, 1.01], [1.0, 0.8, 0.8, dear], 1e-9), 0, [0])

    assert worth[0] == worth[3] == 0.0
    kept = sum(slow <= limit for limit in SLOWDOWNS)
    assert worth[2] == pytest.approx(kept * -np.log(1.0 - saving), rel=0.2)
    assert worth[1] > 3 * worth[2]


def test_what_a_measured_mode_saves_is_not_to_be_saved_again():
    found = predictions([1.0, 1.01, 1.01], [1.0, 0.8, 0.85], 0.03)

    before, after = (sum_expected_savings(found, 0, rows)[2] for rows in ([0], [0, 1]))

    assert before > 0.0
    assert after == 0.0


def play(name: str, seed: int, count: int) -> tuple[list[PowerMode], Floats, float]:
    """Profile a made-up board; its modes, the energy of all modes relative to MAXN, and the chosen mode's regret."""
    modes, rng = grid(), np.random.default_rng(seed)
    truth, noise = another_workload(rng), 0.005 * rng.standard_normal((2, len(grid())))
    seconds = compute_step_s(truth, MAXN, modes) * np.exp(noise[0])
    watts = compute_power_w(truth, MAXN, modes) * np.exp(noise[1])
    knowledge = PriorKnowledge(MAXN, (coefficients(),), idle_w=12.0, seed=seed)
    explorer, rows = load_explorer(name, modes, knowledge), list[int]()
    while len(rows) < count:
        asked = [find_mode_index(modes, mode) or 0 for mode in explorer.ask(count - len(rows))]
        explorer.tell(measured_at(modes, seconds, watts, asked))
        rows += asked
    seen = measured_at(modes, seconds, watts, rows)
    found = BlendedPredictor(knowledge).fit(seen).predict(modes)
    chosen = find_least_energy_within_slowdown(correct_relative_to_row(found, seen, TOP), TOP, 1.05, 1.645).row
    energy = seconds * watts / (seconds * watts)[TOP]
    allowed = seconds <= 1.05 * seconds[TOP]
    assert seconds[chosen] <= 1.06 * seconds[TOP]
    return [modes[row] for row in rows], energy, float(energy[chosen] / energy[allowed].min() - 1.0)


def test_it_starts_as_the_active_explorer_does_and_then_learns_from_each_mode():
    started, _, _ = play("front", seed=3, count=3)
    explorer = FrontExplorer(grid(), known(seed=3))

    assert started == list(load_explorer("active", grid(), known(seed=3)).ask(3))
    assert len(explorer.ask(10)) == 3


def test_with_ten_modes_a_choice_within_a_slowdown_loses_less_than_half_of_what_other_designs_lose():
    lost = {name: np.mean([play(name, seed, 10)[2] for seed in range(8)]) for name in ("front", "active", "random")}

    print(lost)
    assert lost["front"] < 0.5 * min(lost["active"], lost["random"])


def test_where_nothing_more_can_be_saved_it_goes_on_as_the_active_explorer_does():
    slow = Modes(np.concatenate([grid().knobs[[TOP]], grid().knobs[grid().knobs[:, 2] == grid().knobs[:, 2].min()]]))
    front, active = FrontExplorer(slow, known()), ActiveExplorer(slow, known())
    seen = [Measurement(mode, 40, 0.1 if mode == MAXN else 1.0, 20.0) for mode in front.ask(3)]
    front.tell(seen)
    active.tell(seen)

    assert list(front.ask(5)) == list(active.ask(1))
