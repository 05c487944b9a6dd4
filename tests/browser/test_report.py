"""The report and the comparison, opened as files in a real browser: figures, copied tables, menus, a phone's width."""

import json
from pathlib import Path

import pytest
from browser.chromium import Page

from experiments.cli.run_experiment import run as play
from experiments.report.quantities import energy, percent
from experiments.report.run.loaded_runs import load_run, load_runs
from experiments.report.run.run_page import write_report
from experiments.report.run.run_tables import last_round_table
from fedge.telemetry import open_run

pytestmark = pytest.mark.slow

DRAWN = "document.querySelectorAll('.js-plotly-plot .main-svg').length && document.readyState === 'complete'"
ALL_DRAWN = "[...document.querySelectorAll('.chart')].every(one => one.querySelector('.main-svg'))"
SEEDS = (1, 2)
FLEET = "[{device: nano, count: 2}, {device: xavier-nx, count: 1}]"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two policies, each with two seeds, of two rounds."""
    root = tmp_path_factory.mktemp("runs")
    experiment = root / "small.yaml"
    experiment.write_text(f"name: small\nrounds: 2\nbackend: local\nfleet: {FLEET}\n", encoding="utf-8")
    made = {}
    for policy in ("balanced", "maxn"):
        for seed in SEEDS:
            out = root / f"{policy}-{seed}"
            play(experiment, override=[f"policy={policy}", f"seed={seed}"], out=out, as_json=True)
            made[f"{policy}-{seed}"] = out
    return made


def opened(page: Page, path: Path) -> Page:
    page.open(path.as_uri(), 60)
    page.wait_for(DRAWN, 60)
    page.wait_for(ALL_DRAWN, 60)
    return page


@pytest.fixture
def report(page: Page, folders: dict[str, Path], tmp_path: Path) -> Page:
    write_report([folders["balanced-1"]], tmp_path / "report.html")
    return opened(page, tmp_path / "report.html")


@pytest.fixture
def comparison(page: Page, folders: dict[str, Path], tmp_path: Path) -> Page:
    write_report([*folders.values()], tmp_path / "comparison.html")
    return opened(page, tmp_path / "comparison.html")


def card(page: Page, name: str) -> str:
    found = "[...document.querySelectorAll('dt')].find(one => one.textContent === "
    return str(page.evaluate(f"{found}{json.dumps(name)}).nextElementSibling.textContent"))


def cells(page: Page, section: str) -> list[list[str]]:
    """The first table below a heading."""
    script = (
        "[...[...document.querySelectorAll('section')].find(one => one.querySelector('h2').textContent === "
        f"{json.dumps(section)}).querySelector('tbody').rows].map(row => [...row.cells].map(one => one.textContent))"
    )
    return list(page.evaluate(script))


def test_the_report_shows_the_stores_figures(report, folders, artefacts):
    with open_run(folders["balanced-1"]) as run:
        told = run.query("select sum(energy_j) as joules, max_by(accuracy, round) as accuracy from rounds").to_pylist()
    assert card(report, "Energy of the fleet") == energy(told[0]["joules"])
    assert card(report, "Final accuracy") == percent(told[0]["accuracy"])
    rows = [row for row in load_run(folders["balanced-1"]).clients if row.round == 2]
    shown = cells(report, "Last round")
    assert [(row[0], row[8]) for row in shown] == [(row.board, energy(row.energy_j)) for row in rows]
    report.screenshot(artefacts / "report.png", whole=True)
    assert report.console_errors == []
    assert [url for url in report.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_a_boards_power_is_chosen_by_keyboard(report, folders, artefacts):
    with open_run(folders["balanced-1"]) as run:
        found = run.query("select board, sum(power_w * span_s) as joules from samples group by board").to_pylist()
    joules = {row["board"]: row["joules"] for row in found}
    boards = report.evaluate("[...document.getElementById('slider-power-board').options].map(one => one.text)")
    assert boards == ["nano-1", "nano-2", "xavier-nx-1"]
    report.evaluate("document.getElementById('slider-power-board').focus()")
    for number, board in enumerate(boards):
        if number:
            report.press("ArrowDown")
        report.wait_for(
            f"document.getElementById('summary-power-board').textContent.startsWith('{energy(joules[board])}')"
        )
    report.evaluate("document.getElementById('chart-power-fleet').scrollIntoView()")
    report.screenshot(artefacts / "report-power.png")
    assert report.console_errors == []


def test_a_table_is_copied_by_keyboard(report, folders):
    report.command(
        "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"], origin="file:///"
    )
    table = last_round_table(load_run(folders["balanced-1"]))
    buttons = "document.querySelectorAll('section:last-of-type .copies button')"
    for place, told in enumerate((table.csv, table.latex)):
        report.evaluate(f"{buttons}[{place}].focus()")
        report.press("Enter")
        report.wait_for(f"{buttons}[{place}].textContent === 'copied'")
        assert pasted(report) == told
        assert report.evaluate("document.getElementById('said').textContent") == "The table was copied."
    assert report.console_errors == []


def test_a_browser_that_refuses_the_clipboard_still_copies(report, folders):
    report.evaluate("void (navigator.clipboard.writeText = () => Promise.reject(new Error('refused')))")
    report.click("section:last-of-type .copies button")
    report.wait_for("document.querySelector('section:last-of-type .copies button').textContent === 'copied'")
    assert pasted(report) == last_round_table(load_run(folders["balanced-1"])).csv


def pasted(page: Page) -> str:
    """What a paste into an empty field gives."""
    page.evaluate(
        "void (() => { const box = document.createElement('textarea'); box.id = 'pasted';"
        " document.body.append(box); box.focus(); })()"
    )
    told = {"key": "v", "code": "KeyV", "windowsVirtualKeyCode": 86, "modifiers": 2}
    page.command("Input.dispatchKeyEvent", type="rawKeyDown", commands=["paste"], **told)
    page.command("Input.dispatchKeyEvent", type="keyUp", **told)
    text = str(page.wait_for("document.getElementById('pasted').value"))
    page.evaluate("document.getElementById('pasted').remove()")
    return text


def test_the_comparison_shows_every_runs_figures(comparison, folders, artefacts):
    spent = [run.summary["energy_j"] for run in load_runs([*folders.values()])]
    assert [row[3] for row in cells(comparison, "Every run")] == [energy(joules) for joules in spent]
    groups = cells(comparison, "Statistics over seeds")
    assert [(row[0], row[1]) for row in groups] == [("balanced", "2"), ("maxn", "2")]
    comparison.screenshot(artefacts / "comparison.png", whole=True)
    assert comparison.console_errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("shown", ["report", "comparison"])
def test_on_a_phone_nothing_scrolls_sideways(request, page, shown, scheme, artefacts):
    page.resize(390, 844, phone=True)
    page.prefer(prefers_color_scheme=scheme)
    opened_page: Page = request.getfixturevalue(shown)
    assert opened_page.evaluate("document.documentElement.scrollWidth") == 390
    small = "[...document.querySelectorAll('.copies button')].filter(one => one.getBoundingClientRect().height < 24)"
    assert opened_page.evaluate(f"{small}.length") == 0
    opened_page.screenshot(artefacts / f"{shown}-phone-{scheme}.png", whole=True)
    assert opened_page.console_errors == []
