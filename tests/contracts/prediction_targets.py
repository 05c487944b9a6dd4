"""A made-up board's measured table, a target made from it, and explorers and predictors that a test can see through."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, coefficients, made_up_table

from fedge.knowledge.table_background import TableBackground
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.studies.prediction_study import PredictionTarget
from fedge.types import ProfileTable

PLUG_INS = '''
import numpy as np
from fedge.types import Modes, Predictions

TOLD = []

class Draw:
    """Random modes by the seed."""
    def __init__(self, candidates, knowledge):
        self.left = list(np.random.default_rng(knowledge.seed).permutation(len(candidates)))
        self.candidates = candidates
    def ask(self, count):
        rows, self.left = self.left[:count], self.left[count:]
        return Modes(self.candidates.knobs[rows])
    def tell(self, measurements):
        TOLD.append(measurements)

class Stingy(Draw):
    """Two at a time."""
    def ask(self, count):
        return super().ask(min(2, count))

class Stranger(Draw):
    """A mode that the table does not have."""
    def ask(self, count):
        return Modes(np.array([[1.0, 1.0, 1.0, 1.0]]))

class Constant:
    """The mean of what was measured, everywhere."""
    def __init__(self, knowledge):
        self.factor = 1.0
    def fit(self, measurements):
        self.step_s = np.mean([m.step_s for m in measurements])
        self.power_w = np.mean([m.power_w for m in measurements])
        return self
    def predict(self, modes):
        one = np.ones(len(modes))
        return Predictions(modes, self.factor * self.step_s * one, self.power_w * one, 0.1 * one, 0.1 * one)

class Broken(Constant):
    def fit(self, measurements):
        raise ZeroDivisionError("on purpose")

class Blind(Constant):
    """Predicts what is no number."""
    def predict(self, modes):
        self.factor = np.nan
        return super().predict(modes)
'''


def made_up(seed: int = 9, every: int = 5, name: str = "net") -> ProfileTable:
    """Every so many modes of the made-up board, a workload of its own per seed."""
    truth = another_workload(np.random.default_rng(seed))
    return made_up_table(truth, every, workload=name, sha256=f"{seed:064d}", path=f"board/train/{name}.csv")


@pytest.fixture
def table() -> ProfileTable:
    return made_up()


@pytest.fixture
def make_table() -> Callable[..., ProfileTable]:
    return made_up


@pytest.fixture
def target(table: ProfileTable) -> PredictionTarget:
    """All rows plausible, the board's own coefficients as the prior, three budgets."""
    background = TableBackground(PriorKnowledge(MAXN, (coefficients(),)), ("board/other 0123",), (), ())
    budgets = tuple(np.quantile(table.power_w, (0.2, 0.5, 0.9)).tolist())
    return PredictionTarget(table, background, np.ones(len(table.modes), dtype=np.bool_), budgets)


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with the explorers and predictors above."""
    name = f"plug_ins_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PLUG_INS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name
