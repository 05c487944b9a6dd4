"""A point in words tells two points of a plan apart."""

from __future__ import annotations

from fedge.characterisation.plans.naming import described
from fedge.characterisation.plans.reading import read_plan
from fedge.characterisation.point import Point


def test_repeats_count_from_one_and_the_first_is_not_told():
    words = described(Point("here", "net"))
    assert words.startswith("here, net: training")
    assert "repeat" not in words
    assert described(Point("here", "net", repeat=1)) == f"{words}, repeat 2"


def test_every_point_of_a_plan_has_its_own_words(project_root):
    for name in ("emulated-quick", "modes", "loader", "xavier-nx", "over-time"):
        points = read_plan(project_root / "experiments" / "configs" / "characterisation" / f"{name}.yaml").points
        assert len({described(point) for point in points}) == len(points), name
