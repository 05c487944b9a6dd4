"""A point in words tells two points of a plan apart."""

from __future__ import annotations

from fedge.characterisation.plan_reader import read_plan
from fedge.characterisation.point_knobs import describe_point
from fedge.characterisation.sweep_plan import SweepPoint


def test_repeats_count_from_one_and_the_first_is_not_told():
    words = describe_point(SweepPoint("here", "net"))
    assert words.startswith("here, net: training")
    assert "repeat" not in words
    assert describe_point(SweepPoint("here", "net", repeat=1)) == f"{words}, repeat 2"


def test_every_point_of_a_plan_has_its_own_words(project_root):
    for name in ("emulated-quick", "modes", "loader", "xavier-nx", "over-time"):
        points = read_plan(project_root / "experiments" / "configs" / "characterisation" / f"{name}.yaml").points
        assert len({describe_point(point) for point in points}) == len(points), name
