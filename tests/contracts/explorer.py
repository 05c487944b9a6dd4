"""What every explorer does; a test class inherits it and says how one is made from candidates and knowledge."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from contracts.boards import MAXN, coefficients, grid

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.protocols import Explorer
from fedge.types import Measurement, Modes, PowerMode

Make = Callable[[Modes, PriorKnowledge], Explorer]


def measured(modes: Iterable[PowerMode]) -> list[Measurement]:
    return [Measurement(mode, 40, 0.1 + 0.001 * i, 20.0 + 0.1 * i) for i, mode in enumerate(modes)]


def known(seed: int = 3) -> PriorKnowledge:
    return PriorKnowledge(MAXN, (coefficients(),), idle_w=12.0, seed=seed)


def propose(explorer: Explorer, count: int) -> list[PowerMode]:
    """Ask until there are as many modes, or no more: some explorers propose few at a time, to learn from them."""
    modes: list[PowerMode] = []
    while len(modes) < count and len(asked := explorer.ask(count - len(modes))):
        modes += asked
    return modes


class ExplorerContract:
    """Fixtures: ``make`` is the explorer's class, or a function like it; ``candidates`` are at least 20 modes."""

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    @pytest.fixture
    def candidates(self) -> Modes:
        return Modes(grid().knobs[::7])

    def test_it_proposes_as_many_candidates_as_are_asked_for(self, make, candidates):
        asked = propose(make(candidates, known()), 10)

        assert len({*asked}) == 10
        assert {*asked} <= {*candidates}

    def test_no_mode_is_proposed_twice_whether_told_or_not(self, make, candidates):
        explorer = make(candidates, known())
        first, second = propose(explorer, 6), propose(explorer, 6)
        explorer.tell(measured(first))
        third = propose(explorer, 6)

        assert len({*first, *second, *third}) == 18

    def test_a_told_mode_is_never_proposed(self, make, candidates):
        few = Modes(candidates.knobs[:20])
        explorer = make(few, known())
        explorer.tell(measured(Modes(few.knobs[5:15])))

        rest = propose(explorer, 40)

        assert sorted(rest) == sorted([*few][:5] + [*few][15:])

    def test_fewer_come_when_the_candidates_run_out_and_then_none(self, make, candidates):
        few = Modes(candidates.knobs[:5])
        explorer = make(few, known())

        assert {*propose(explorer, 8)} == {*few}
        assert explorer.ask(1).knobs.shape == (0, 4)

    @pytest.mark.parametrize("count", [0, -1])
    def test_asking_for_nothing_gives_nothing(self, make, candidates, count):
        explorer = make(candidates, known())

        assert len(explorer.ask(count)) == 0
        assert len(propose(explorer, 3)) == 3

    def test_without_a_candidate_it_proposes_none(self, make):
        assert len(make(Modes(np.empty((0, 4))), known()).ask(5)) == 0

    def test_a_candidate_that_occurs_twice_is_proposed_once(self, make, candidates):
        few = candidates.knobs[:4]

        assert len(propose(make(Modes(np.concatenate([few, few])), known()), 8)) == 4

    def test_the_same_seed_and_history_lead_to_the_same_proposals(self, make, candidates):
        def history() -> list[list[PowerMode]]:
            explorer = make(candidates, known(seed=11))
            first = propose(explorer, 5)
            explorer.tell(measured(first))
            return [first, propose(explorer, 7)]

        assert history() == history()

    def test_what_is_no_candidate_may_be_told(self, make, candidates):
        explorer = make(candidates, known())
        explorer.tell([Measurement(PowerMode(3, 333.0, 444.0, 555.0), 40, 0.1, 20.0)])

        assert len(propose(explorer, 4)) == 4

    def test_the_candidates_are_left_as_they_were(self, make, candidates):
        before = candidates.knobs.copy()
        explorer = make(candidates, known())
        explorer.tell(measured(propose(explorer, 5)))
        explorer.ask(5)

        np.testing.assert_array_equal(candidates.knobs, before)
