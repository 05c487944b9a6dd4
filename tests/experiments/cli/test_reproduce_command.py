"""``fedge reproduce``: the published figures beside ours, with their source, label and difference."""

import json
import re

import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from fedge.errors import BadInput, UnknownName
from fedge.studies.reproductions import REPRODUCTIONS


def _run(*words: str) -> str:
    done = CliRunner().invoke(app, ["reproduce", *words], env={"COLUMNS": "160", "FEDGE_PROFILES": ""})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def test_without_a_name_all_papers_are_listed():
    shown, listed = _run(), json.loads(_run("--json"))

    assert [one["name"] for one in listed] == list(REPRODUCTIONS)
    for one in listed:
        assert re.search(rf"{one['name']} .*{re.escape(one['reference'])}", shown)


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_reproduction_names_its_authors_and_year(name):
    one = REPRODUCTIONS[name]

    assert re.fullmatch(r"[A-Z].* 20\d\d(, arXiv [\d.]+)?", one.reference)
    assert one.title
    assert one.compares


def test_figures_stand_beside_the_published_ones_and_say_what_differs(tmp_path):
    out = tmp_path / "figures.json"
    shown = _run("accelerators", "--out", str(out))
    figures = json.loads(out.read_text(encoding="utf-8"))

    assert figures == json.loads(_run("accelerators", "--json"))
    assert {"what", "published", "ours", "unit", "source", "label", "differs"} == set(figures[0])
    gain = next(one for one in figures if one["what"] == "gain by a DLA, batch 1")
    assert 40 <= gain["ours"] <= 50
    assert gain["label"] == "estimated"
    for figure in figures:
        assert re.search(rf"{re.escape(figure['what'])} +{re.escape(figure['published'])} ", shown)
        assert f": {figure['differs']}." in shown


@pytest.mark.slow
def test_errors_of_a_method_are_computed_from_measured_tables(profiles_root):
    figures = json.loads(_run("perf4sight", str(profiles_root), "--json"))

    assert [one["published"] for one in figures] == ["5", "9", "5", "9"]
    assert all(0 < one["ours"] < 15 for one in figures)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UnknownName, match=r"known: powertrain, fulcrum"):
        _run("fedjoule")


@pytest.mark.parametrize("name", [name for name, one in REPRODUCTIONS.items() if one.needs_tables])
def test_without_tables_the_error_says_what_to_do(name):
    with pytest.raises(BadInput, match=r"TABLES: got no folder; .*FEDGE_PROFILES.* characterisation, accelerators"):
        _run(name)


@pytest.mark.parametrize("name", [name for name, one in REPRODUCTIONS.items() if one.needs_tables])
def test_a_folder_without_the_tables_is_refused(name, tmp_path):
    with pytest.raises(BadInput, match=r"TABLES: got .* without (agx|perf4sight)"):
        _run(name, str(tmp_path))
    with pytest.raises(BadInput, match=r"TABLES: got no folder .*mistyped; .* in which (agx|perf4sight).* lies"):
        _run(name, str(tmp_path / "mistyped"))


def test_a_damaged_table_is_named(tmp_path):
    for name in ("mobilenetv3l-gld23k", "resnet50-imagenet"):
        table = tmp_path / "agx-orin" / "infer" / f"{name}.csv"
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text("cores,cpu_khz\n1,2\n", encoding="utf-8")

    with pytest.raises(BadInput) as error:
        _run("pagoda", str(tmp_path))
    assert "mobilenetv3l-gld23k.csv" in error.value.where


def test_repetitions_of_what_is_not_random_are_refused():
    with pytest.raises(BadInput, match="draws nothing at random"):
        _run("accelerators", "--seeds", "3")
