"""The page of a sweep: what it says with many points, few, one and none; offline, escaped, small."""

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from contracts.shown import charts_of

from experiments.cli.characterise_commands import characterise_report
from experiments.report.characterisation.characterisation_page import (
    MAX_OTHER_PLACES,
    build_advice_section,
    build_sections,
    write_page,
    write_report,
)
from experiments.report.characterisation.characterisation_summary import (
    CharacterisationSummary,
    summarise_settings,
)
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.characterisation.sweep_store import SweepResult
from fedge.characterisation.tuning_advice import TuningAdvice
from fedge.confidence_interval import Estimate
from fedge.errors import BadInput
from fedge.json_reader import to_json_value
from fedge.types import PowerMode


def _advice(
    workload: str, saving: float, *, quantity: str = "e2e_s", seen: bool = True, knob: str = "gpu_mhz"
) -> TuningAdvice:
    then = 100.0 * (1.0 - saving)
    return TuningAdvice(
        board="nano-1", workload=workload, kind="train", knob=knob, now=1377.0, then=905.25, quantity=quantity,
        present=100.0, expected=Estimate(then, then - 1, then + 1, 9 if seen else 0), why="because", label="estimated",
        point=workload, setting="batch 16",
    )  # fmt: skip


def test_time_and_energy_of_a_turn_are_on_one_card_with_the_other_workloads():
    found = [_advice("net", 0.3), _advice("net", 0.2, quantity="energy_j"), _advice("<b>", 0.1)]
    html = build_advice_section(found, {}, 3).html
    assert html.count("<article>") == 1
    assert "GPU clock 1377 → 905.25 MHz" in html
    assert "30.0\xa0% less time per epoch, 20.0\xa0% less energy per epoch" in html
    assert "The same: &lt;b&gt;, nano-1, training: 10.0\xa0% less time per epoch." in html


def test_what_was_seen_and_what_is_expected_are_on_cards_of_their_own():
    assert (
        build_advice_section([_advice("net", 0.3), _advice("other", 0.2, seen=False)], {}, 2).html.count("<article>")
        == 2
    )


def test_many_places_are_counted_and_so_are_many_cards():
    places = [_advice(f"net-{i}", 0.5 - 0.01 * i) for i in range(MAX_OTHER_PLACES + 3)]
    assert "; and 2 more." in build_advice_section(places, {}, 9).html
    cards = [_advice("net", 0.3, knob=f"knob-{i}") for i in range(10)]
    assert "1 more is in findings.json." in build_advice_section(cards, {}, 9).html


LARGEST_MB = 15.0


@pytest.fixture(scope="module")
def page(few: SweepResult) -> str:
    return page_of(few)


def page_of(result: SweepResult) -> str:
    write_report(result)
    return (result.folder / "report.html").read_text(encoding="utf-8")


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_the_page_goes_from_words_to_figures(page):
    assert headings(page) == [
        "Findings",
        "Advice",
        "Time and energy by knob",
        "Time against energy",
        "Single points over time",
        "Variability",
        "All points",
    ]


def test_no_percent_sign_begins_a_line_of_what_is_said(told):
    findings, *_ = build_sections(told)
    assert re.search(r"\d\N{NO-BREAK SPACE}%", findings.html)
    assert not re.search(r"\d %", findings.html)


def test_the_page_asks_nothing_of_the_network(page):
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?!data:)", page)


def test_every_link_to_a_point_leads_to_its_row(page):
    linked = set(re.findall(r'href="#(point-[0-9a-f]+)"', page))
    assert linked
    assert linked <= set(re.findall(r'id="(point-[0-9a-f]+)"', page))


def test_keys_of_charts_are_unique(told):
    keys = [chart.key for section in build_sections(told) for chart in section.charts]
    assert len(keys) == len(set(keys))


def test_one_unmetered_point_makes_sense(sweep, base):
    page = page_of(sweep([base], metered=False, gpu=False))
    assert "Power was not measured, so this page has no energy." in page
    assert "Time against energy" not in headings(page)
    assert "energy (J)" not in page
    assert "1 of 1" in page
    assert headings(page)[2:4] == ["Time of an epoch", "Single points over time"]


def test_a_machine_without_power_modes_makes_sense(sweep, base):
    points = [replace(base, board="here", mode=None, workers=workers) for workers in (0, 2)]
    page = page_of(sweep(points, metered=False, gpu=False))
    assert "Time by knob" in headings(page)
    assert "<h3>Loader workers</h3>" in page
    assert "energy (J)" not in page
    assert ">as found" not in page


def test_no_finished_point_makes_sense(sweep, base):
    page = page_of(sweep([], failed=[(base, "the board did not answer")], skipped=[(replace(base, workers=2), "no")]))
    assert headings(page) == ["Findings", "Advice", "All points", "Skipped and failed"]
    assert "the board did not answer" in page
    assert "0 of 2" in page


def test_an_empty_plan_makes_sense(sweep):
    assert "0 of 0" in page_of(sweep([]))


def test_many_failures_are_counted_by_their_reason(sweep, base):
    failed = [(replace(base, batch_size=1 + i), f"out of memory ({i % 2})") for i in range(100)]
    page = page_of(sweep([base], failed=failed))
    assert "<h3>100 failed</h3>" in page
    assert page.count("out of memory (0)") == 3  # once shown, once in each of the two that can be copied


def test_a_note_of_every_point_is_told_once(told):
    stats = tuple(replace(one, notes=("the clocks are as found", *one.notes)) for one in told.stats)
    stats = (replace(stats[0], notes=(*stats[0].notes, "hot")), *stats[1:])
    html = build_sections(replace(told, stats=stats))[-1].html
    table, below = html.split("</table>")
    assert "the clocks are as found" not in table
    assert "At all points: the clocks are as found." in below
    assert ">hot<" in table


def test_everything_that_users_name_is_escaped(sweep, base):
    evil = "<img src=x onerror=alert(1)>"
    point = replace(base, workload=evil, storage=evil, runtime=f"docker:{evil}", board=f"{evil}-1")
    points = [replace(point, workers=workers) for workers in (0, 1, 2)]
    page = page_of(sweep(points, name=evil, failed=[(replace(point, workers=9), evil)]))
    assert "<img src=x" not in page
    charts = charts_of(page).values()
    drawn = [(one["data"], one["layout"]) for chart in charts for one in (chart, *chart["frames"])]
    assert "<img" not in json.dumps(drawn)  # Plotly would take it for a tag
    assert "&lt;img" in json.dumps(drawn)
    assert "&lt;img src=x" in page


def test_two_thousand_points_stay_below_15_mb(told, tmp_path):
    write_page(_swollen(told, 2000), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < LARGEST_MB * 1e6
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "groups are shown" in page
    assert "The menu has 12 of 2,000 settings" in page


def _swollen(told: CharacterisationSummary, count: int) -> CharacterisationSummary:
    """The same figures at very many settings."""
    points = []
    for i in range(count):
        mode = PowerMode(2 + i % 4 * 2, 1190.4 + i // 4 % 5 * 100, 420.75 + i // 20 % 5 * 100, 2133.0)
        knobs: dict[str, Any] = {"batch_size": 4 << (i // 100 % 4), "workers": i // 400 % 5}
        points.append(SweepPoint("agx-xavier-1", "mobilenet", mode, **knobs))
    first, finished = told.stats[0], told.result.points[0]
    stats = tuple(replace(first, point=point, notes=("a note of a usual length, " * 3,)) for point in points)
    plan = replace(told.result.plan, points=tuple(points))
    result = replace(told.result, plan=plan, points=tuple(replace(finished, point=point) for point in points))
    return replace(told, result=result, stats=stats, settings=summarise_settings(stats, {}))


def test_the_findings_are_plain_json_with_units_in_the_names(told, page, few):
    said = json.loads((few.folder / "findings.json").read_text(encoding="utf-8"))
    assert {"findings", "advice", "effects", "variability", "labels"} <= set(said)
    assert [one["title"] for one in said["findings"]] == [one.title for one in told.findings]
    timed = next(one for one in said["effects"] if one["quantity"] == "e2e_s")
    assert timed["before_value_s"] > 0
    assert {"ratio", "ratio_low", "ratio_high"} <= set(timed)
    assert "values_s" in next(one for one in said["variability"] if one["quantity"] == "e2e_s")
    assert said["labels"] == [
        {"time": "estimated", "power": "estimated", "source": "formulas of a test", "points": len(few.points)}
    ]


def test_what_is_not_finite_is_null():
    assert to_json_value({"a": math.inf, "b": (math.nan, 1.5), "c": "x"}) == {
        "a": None,
        "b": [None, 1.5],
        "c": "x",
    }


def test_the_page_replaces_an_older_one_as_a_whole(few):
    (few.folder / "report.html").write_text("old", encoding="utf-8")
    write_report(few)
    assert (few.folder / "report.html").read_text(encoding="utf-8").endswith("</html>")
    assert sorted(path.name for path in few.folder.iterdir()) == ["findings.json", "report.html"]


def test_a_folder_without_a_sweep_is_refused(tmp_path):
    with pytest.raises(BadInput):
        characterise_report(tmp_path / "nothing")
