"""The page of a sweep, opened as a file in a real browser: pictures, menus, sorting, points that are followed."""

from pathlib import Path

import pytest
from browser.chromium import Page

from experiments.cli.characterise_commands import measure_points

pytestmark = pytest.mark.slow

ALL_DRAWN = "[...document.querySelectorAll('.chart')].every(one => one.querySelector('.main-svg'))"
PLAN = """
name: browsed
boards: [emulated:agx-xavier]
workloads: {mobilenetv3l-gld23k: {count: 320}, lenet5-mnist: {count: 800}}
course: {epochs: 3, discard: 1}
base: {workload: mobilenetv3l-gld23k, workers: 2}
sweeps:
  - {workers: [0, 1, 2, 4], workload: all}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweep")
    (root / "plan.yaml").write_text(PLAN, encoding="utf-8")
    measure_points(root / "plan.yaml", root / "out", False)
    return root / "out"


@pytest.fixture
def opened(page: Page, folder: Path) -> Page:
    page.open((folder / "report.html").as_uri(), 60)
    page.wait_for(ALL_DRAWN, 60)
    return page


def column(page: Page, head: str) -> list[str]:
    """Of the table of all points."""
    script = (
        "(() => { const t = document.querySelector('.sortable table');"
        f" const i = [...t.tHead.rows[0].cells].findIndex(one => one.textContent === {head!r});"
        " return [...t.tBodies[0].rows].map(row => row.cells[i].textContent); })()"
    )
    return list(page.evaluate(script))


def press_head(page: Page, head: str) -> None:
    page.evaluate(f"[...document.querySelectorAll('.sortable th')].find(one => one.textContent === {head!r}).focus()")
    page.press("Enter")


def test_every_picture_is_drawn_from_the_file_alone(opened, artefacts):
    opened.screenshot(artefacts / "characterisation.png", whole=True)
    assert opened.console_errors == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_no_width_makes_the_page_scroll_sideways(opened):
    for width in (1400, 600, 380):
        opened.resize(width, 900)
        opened.wait_for(f"document.documentElement.scrollWidth <= {width}")


def test_the_table_is_sorted_by_its_heads(opened):
    for falling in (False, True):
        press_head(opened, "E2E (s)")
        seconds = [float(one.replace(",", "")) for one in column(opened, "E2E (s)")]
        assert seconds == sorted(seconds, reverse=falling)
    press_head(opened, "workload")
    assert column(opened, "workload") == sorted(column(opened, "workload"))


def test_a_findings_point_is_found_in_the_table_and_in_the_pictures(opened):
    opened.evaluate("document.querySelectorAll('ol.findings details').forEach(one => { one.open = true; })")
    key = opened.evaluate("document.querySelector('ol.findings a[data-point]').dataset.point")
    opened.click("ol.findings a[data-point]")
    marked = (
        "[...document.querySelectorAll('.js-plotly-plot')].filter(one => one.data.some(t => t.name === 'marked'))"
        ".map(one => one.id)"
    )
    opened.wait_for(f"{marked}.length > 0")
    assert "chart-knob-workers" in opened.evaluate(marked)
    assert opened.evaluate("location.hash") == f"#point-{key}"
    shown = "document.getElementById('chart-steps').data[0].meta"
    opened.wait_for(f"{shown} === {key!r}")
    assert opened.console_errors == []


def test_the_menu_of_the_sensors_turns_to_another_point(opened):
    menu = "document.getElementById('slider-sensors')"
    assert opened.evaluate(f"{menu}.options.length") == 8
    before = opened.evaluate("document.getElementById('chart-sensors').data[0].meta")
    opened.evaluate(f"{menu}.focus()")
    opened.press("ArrowDown")
    opened.wait_for(f"document.getElementById('chart-sensors').data[0].meta !== {before!r}")


def test_the_contents_lead_to_every_section(opened):
    script = (
        "[...document.querySelectorAll('#contents a')].every(one => document.getElementById(one.hash.slice(1))"
        "?.textContent === one.textContent) && document.querySelectorAll('#contents a').length"
    )
    assert opened.evaluate(script) == opened.evaluate("document.querySelectorAll('h2').length")
