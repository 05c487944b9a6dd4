"""The plane of a placement numbers the combinations, a table lists them, and names are text."""

import dataclasses

import pytest
from contracts.shown import check_drawn, shown_text

from experiments.report.analysis.placement_report import (
    plane_table,
    power_latency_chart,
    print_placement_advice,
    write_placement_page,
)
from fedge.analysis.placement.placement_advice import PlacementAdvice, PlacementOptions, advise_placement


@pytest.fixture(scope="module")
def advice() -> PlacementAdvice:
    return advise_placement(PlacementOptions("resnet50-imagenet", "agx-orin", rate_hz=300.0))


def test_every_combination_is_one_numbered_point_and_one_row_of_the_table(advice):
    (points,) = [trace for trace in power_latency_chart(advice).data if "text" in trace]
    rows = plane_table(advice).rows

    assert len(advice.curves) == 11
    assert points["text"] == [row[0].plain_text for row in rows] == [str(i) for i in range(1, 12)]
    for x, y, row in zip(points["x"], points["y"], rows, strict=True):
        assert (x, y) == (row[3].value, row[4].value)


def test_the_numbers_of_close_points_are_on_opposite_sides(advice):
    (points,) = [trace for trace in power_latency_chart(advice).data if "text" in trace]
    tensor, cuda_dla = (points["text"].index(number) for number in ("2", "9"))

    assert points["y"][cuda_dla] > points["y"][tensor]
    assert points["textposition"][cuda_dla] == "top center"
    assert points["textposition"][tensor] == "bottom center"


def test_the_chosen_placement_is_inside_the_plane(advice):
    slow = dataclasses.replace(advice, chosen=dataclasses.replace(advice.chosen, latency_s=100.0))
    low, high = power_latency_chart(slow).layout["xaxis"]["range"]

    assert low < 5 < high  # 10^5 ms


def test_the_page_is_drawn_by_plotly_and_has_the_table_of_numbers(advice, tmp_path):
    write_placement_page(advice, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")

    assert list(check_drawn(page)) == ["throughput", "plane"]
    assert "cuda + tensor + dla-0 + dla-1</td>" in page
    assert 'class="badge estimated"' in page


@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_figure_is_cut(advice, width):
    text = shown_text(print_placement_advice, advice, width=width)

    assert "…" not in text
    assert "slowdown" in text
    assert all(f"{curve.best_outcome.images_per_s:.1f}" in text for curve in advice.curves)
