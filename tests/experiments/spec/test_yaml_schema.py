"""The schemas of YAML files are those of their readers: editors accept what ``fedge`` accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from experiments.cli.user_files import load_record
from experiments.spec.experiment_loader import parse_override, resolve_experiment, set_field
from experiments.spec.yaml_schema import build_schema, describe_keys, find_key
from fedge.decisions.planning.fleet_planners import CONFIDENCE, MAX_SLOWDOWN, TIME_WEIGHT
from fedge.decisions.planning.joint_planner import MIN_PROGRESS
from fedge.devices.board_kinds import DEFAULT_DOWN_MBPS, DEFAULT_UP_MBPS
from fedge.errors import UnknownName
from fedge.experiment import Experiment

ROOT = Path(__file__).resolve().parents[3]
MODELINE = "# yaml-language-server: $schema="
KINDS = ("experiment", "sweep", "board", "plan")
FILES = sorted((ROOT / "experiments" / "configs").rglob("*.yaml"))
KEYS = list(describe_keys(Experiment))


def read_schema(kind: str) -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "schemas" / f"{kind}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_published_schema_is_that_of_the_record(kind):
    made = json.loads(json.dumps(build_schema(load_record(kind), f"fedge {kind}")))

    assert read_schema(kind) == made, f"fedge schema {kind} --out docs/schemas/{kind}.json writes it anew"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_file_names_its_schema_and_fits_it(path):
    jsonschema = pytest.importorskip("jsonschema")
    text = path.read_text(encoding="utf-8")
    named = (path.parent / text.splitlines()[0].removeprefix(MODELINE)).resolve()

    jsonschema.validate(yaml.safe_load(text), json.loads(named.read_text(encoding="utf-8")))


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"polcy": "maxn"}, {"fleet": []}, {"workload": {"momentum": 1}}])
def test_what_the_reader_refuses_the_schema_refuses_too(wrong):
    jsonschema = pytest.importorskip("jsonschema")

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"fleet": ["nano"], **wrong}, read_schema("experiment"))


def test_every_key_of_an_experiment_has_a_meaning():
    assert [one.key for one in KEYS if not one.meaning] == []


@pytest.mark.parametrize("key", [one for one in KEYS if one.example], ids=lambda one: one.key)
def test_the_example_of_a_key_is_valid(key, tmp_path):
    raw: dict[str, Any] = {
        "fleet": [{"device": "nano", "battery": {"capacity_wh": 1}, "loader": {"workers": 1}}],
        "mods": [{"name": "fixedclipping_mod"}],
        "exporters": [{"name": "tensorboard"}],
        "workload": {"schedule": {"name": "StepLR"}, "network": {"model": "resnet50"}},
        "strategy": {"name": "FedAvg"},
        "signal": {"trace": "carbon.csv"},
    }
    if "serving" in key.key:
        raw["fleet"][0]["serving"] = {"cost": "net", "rate_hz": 1, "latency_s": 1, "network": {"model": "resnet50"}}
    if "strategy.wraps" in key.key:
        raw["strategy"]["wraps"] = {"name": "FedAvg"}
    set_field(raw, *parse_override(key.example.removeprefix("--set ")))
    if ".placement" not in key.key:  # reads the plan's file
        resolve_experiment(raw, tmp_path / "exp.yaml")


def test_a_key_is_found_however_its_list_is_written_and_shows_the_keys_below_it():
    names = [one.key for one in find_key(Experiment, "fleet.0.link")]

    assert names == [one.key for one in find_key(Experiment, "fleet[].link")]
    assert names[:2] == ["fleet[].link", "fleet[].link.down_mbps"]
    with pytest.raises(UnknownName, match=r"known: fleet\.link\.down_mbps, fleet\.link\.up_mbps"):
        find_key(Experiment, "fleet.link.nothing")
    with pytest.raises(UnknownName, match="known: name, seed"):
        find_key(Experiment, "nothing.absent")
    with pytest.raises(UnknownName, match=r"known: policy\.min_progress"):
        find_key(Experiment, "min_progress")


@pytest.mark.parametrize(
    ("key", "defaults"),
    [
        ("policy.min_progress", (MIN_PROGRESS,)),
        ("policy.time_weight", (TIME_WEIGHT,)),
        ("policy.max_slowdown", (MAX_SLOWDOWN,)),
        ("policy.confidence", (CONFIDENCE, 0.5)),
        ("fleet[].link.down_mbps", (DEFAULT_DOWN_MBPS,)),
        ("fleet[].link.up_mbps", (DEFAULT_UP_MBPS,)),
    ],
)
def test_a_key_that_is_null_by_default_says_what_null_stands_for(key, defaults):
    (found,) = find_key(Experiment, key)

    assert found.default == "null"
    assert all(f" {default:g}" in found.meaning.partition("null")[2] for default in defaults)


def test_a_record_that_holds_itself_is_described_once():
    class Chain(BaseModel):
        """A chain.

        Attributes:
            inner: The next one.
        """

        inner: Chain | None = None

    assert [one.key for one in describe_keys(Chain)] == ["inner"]


@pytest.mark.parametrize("value", [1e6, 1e-6, 1e20, 0.1, 2.0])
def test_a_default_is_shown_as_yaml_reads_it(value):
    class Holder(BaseModel):
        """A holder.

        Attributes:
            number: A number.
        """

        number: float = value

    (described,) = describe_keys(Holder)
    assert yaml.safe_load(str(described.default)) == value
