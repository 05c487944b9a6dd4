"""YAML that users write: what is refused, with which line, and that reading it is bounded."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from contracts.boards import coefficients
from contracts.launching import SMALL
from hypothesis import given
from hypothesis import strategies as st

from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.characterisation.mode_measurement import build_emulated_bench
from fedge.client.inference_service import InferenceWork, price_inference
from fedge.costs import cost_profile
from fedge.costs.cost_priors import build_priors, select_prior_sources
from fedge.costs.cost_profile import CalibrationEvidence, CostProfile, load_calibrated_training, write_profile
from fedge.devices import board_kinds, catalogue
from fedge.devices.board_kinds import build_kind
from fedge.errors import BadInput
from fedge.experiment import Experiment, list_boards
from fedge.studies.serving.job_tables import ConcurrentJobOptions, load_job_tables
from fedge.yaml_files import MAX_DEPTH, MAX_NODES, parse_yaml, read_yaml, read_yaml_mapping

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 3000))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@contextmanager
def _one_line_about(where: str) -> Iterator[None]:
    try:
        yield
    except BadInput as error:
        if not str(error).startswith(where) or "\n" in str(error):
            raise AssertionError(str(error)) from error
        raise


@given(VALUES)
def test_what_yaml_writes_is_read_as_it_was(value: Any) -> None:
    assert parse_yaml(yaml.safe_dump(value), "x") == value


@given(st.text(alphabet="ab01:-[]{}&*!?|>#'\"\n ,._x~<%@\\\t", max_size=60))
def test_any_text_is_a_value_or_one_line_that_names_the_file(text: str) -> None:
    with suppress(BadInput), _one_line_about("plan.yaml"):
        parse_yaml(text, "plan.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nseed: 2024-13-45\n", "line 2: got text that is not YAML; '2024-13-45' is no timestamp"),
        ("seed: 0x_", "plan.yaml: got .*'0x_' is no int"),
        ("seed: !!int abc", "plan.yaml: got .*'abc' is no int"),
        ("? [x, y]\n: 1\n", "line 1: .*a list or mapping stands where a key is wanted"),
        ("{[]: 2}\n", "a list or mapping stands where a key is wanted"),
        ("a: 1\nb: 2\na: 3\n", "line 3: .*the key 'a' stands here twice"),
        ("a: !!python/object:os.system x\n", "line 1: .*could not determine a constructor"),
        ("a: [1\nb: 2\n", "line 2: got text that is not YAML"),
        ("&a [*a]\n", "an alias stands inside of what it names"),
        ("[" * 3000 + "]" * 3000, "levels"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} levels"),
        (BOMB, f"more than {MAX_NODES:,} values"),
        (CHAIN, f"more than {MAX_DEPTH} levels"),
    ],
)
def test_a_wrong_document_is_one_line_with_its_place(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        parse_yaml(text, "plan.yaml")
    assert "\n" not in str(refused.value)


def test_aliases_and_merges_are_understood() -> None:
    text = "base: &base {device: nano, count: 2}\nfleet: [*base, {<<: *base, count: 3}]\n"
    assert parse_yaml(text, "x")["fleet"] == [{"device": "nano", "count": 2}, {"device": "nano", "count": 3}]


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(BadInput, match="got a larger file; a YAML file of at most 2 MB"):
        read_yaml(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "it is not UTF-8 text"),
        (b"", "got an empty file; a mapping of keys"),
        (b"- 1\n", "got a list; a mapping of keys"),
        (None, "No such file"),
    ],
)
def test_a_file_without_a_mapping_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        read_yaml_mapping(path, "a mapping of keys")


TABLE_SHA = "b" * 64
PROFILE = CostProfile(
    "nano",
    workload="my-net",
    batch_size=8,
    coefficients=coefficients(),
    label="calibrated",
    source="here",
    time_mape=0.02,
    power_mape=0.01,
    residual_time_sd_log=0.03,
    residual_power_sd_log=0.015,
    evidence=CalibrationEvidence("my-net.csv", TABLE_SHA, rows=210, time_p95_ape=0.06, power_p95_ape=0.04),
)


def forget_caches() -> None:
    for cached in (
        catalogue._load_all,
        cost_profile.load_user_profiles,
        cost_profile.load_calibrated_training,
        cost_profile.load_calibrated_inference,
        board_kinds._cached_kind,
    ):
        cached.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A knowledge folder that the environment names, with a board and a cost profile."""
    place = tmp_path / "knowledge"
    monkeypatch.setenv("FEDGE_KNOWLEDGE", str(place))
    add_board(place / "boards")
    write_profile(PROFILE, place / "costs")
    forget_caches()
    yield place
    monkeypatch.undo()
    forget_caches()


def add_board(place: Path, name: str = "my-nano") -> None:
    stock = resources.files("fedge.devices") / "catalogue" / "nano.yaml"
    lines = [
        f"name: {name}" if line.startswith("name:") else line
        for line in stock.read_text(encoding="utf-8").splitlines()
        if not line.startswith("aliases:")
    ]
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.yaml").write_text("\n".join(lines), encoding="utf-8")


def load(tmp_path: Path, *overrides: str) -> Experiment:
    path = tmp_path / "exp.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return load_experiment(path, overrides)


def test_a_board_and_a_profile_of_the_knowledge_are_named_in_an_experiment(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the task of an experiment is tried")
    overrides = ["fleet=[{device: my-nano}, {device: nano}]", "workload.cost=my-net", "workload.batch_size=8"]
    experiment = load(tmp_path, *overrides)
    experiment_checks.check_experiment(experiment)
    other, own = (build_kind(board, experiment.workload) for board in list_boards(experiment))

    assert (other.spec.name, own.spec.name) == ("my-nano", "nano")
    assert (other.truth_label, own.truth_label) == ("estimated", "calibrated")
    assert "my-net.csv" in own.truth_source
    assert all("my-net" not in prior.source for prior in own.priors), "no prior is of the workload itself"


def test_without_the_folder_the_names_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGE_KNOWLEDGE", raising=False)
    forget_caches()

    with pytest.raises(BadInput, match="my-nano"):
        experiment_checks.check_experiment(load(tmp_path, "fleet=[my-nano]"))
    with pytest.raises(BadInput, match=r"workload\.cost"):
        experiment_checks.check_experiment(load(tmp_path, "workload.cost=my-net", "workload.batch_size=8"))


def test_a_calibrated_workload_has_the_batch_size_of_its_table(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"workload\.batch_size: got 16; 8, at which my-net was calibrated"):
        experiment_checks.check_experiment(load(tmp_path, "workload.cost=my-net"))


def test_the_users_profile_replaces_the_one_of_fedge_for_the_same_board_and_workload(folder: Path) -> None:
    shipped = next(one for one in load_calibrated_training() if one.workload == "resnet18-imagenet")
    write_profile(dataclasses.replace(PROFILE, device=shipped.device, workload=shipped.workload), folder / "costs")
    forget_caches()
    found = [
        one for one in load_calibrated_training() if (one.device, one.workload) == (shipped.device, shipped.workload)
    ]

    assert [one.batch_size for one in found] == [8]
    np.testing.assert_allclose(found[0].coefficients.time, PROFILE.coefficients.time, atol=1e-5)


def test_an_evaluation_leaves_out_the_users_profile_of_the_table_that_it_judges(folder: Path) -> None:
    specs = catalogue.load_catalogue()
    for sources in (
        select_prior_sources("renamed", specs, unseen=TABLE_SHA),
        select_prior_sources("my-net", specs),
    ):
        assert all(one.workload != "my-net" for one in sources.training_profiles)
    assert any(one.workload == "my-net" for one in select_prior_sources("vit-b16-cifar10", specs).training_profiles)
    assert all("my-net" not in one.source for one in build_priors(specs["nano"], "x", specs, unseen=TABLE_SHA))


def test_damaged_files_and_taken_names_are_skipped_with_a_line(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_board(folder / "boards", "nano")
    (folder / "boards" / "bad.yaml").write_text("name: bad", encoding="utf-8")
    (folder / "costs" / "bad.yaml").write_text("device: [", encoding="utf-8")
    forget_caches()

    with caplog.at_level(logging.WARNING):
        assert catalogue.find("my-nano").name == "my-nano"
        assert any(one.workload == "my-net" for one in load_calibrated_training())
    assert len(caplog.messages) == 3
    assert all("skipped" in message for message in caplog.messages)


def test_a_package_brings_boards_and_profiles_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "our_boards"
    add_board(package / "boards", "our-nano")
    write_profile(PROFILE, package / "costs")
    (package / "__init__.py").write_text("", encoding="utf-8")
    about = tmp_path / "site" / "our_boards-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: our_boards\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[fedge.catalogue]\nours = our_boards\ngone = no_such\n", encoding="utf-8")
    monkeypatch.delenv("FEDGE_KNOWLEDGE", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    forget_caches()

    try:
        assert catalogue.find("our-nano").name == "our-nano"
        assert any(one.workload == "my-net" for one in load_calibrated_training())
    finally:
        monkeypatch.undo()
        forget_caches()


def test_the_users_profiles_price_profiling_planning_and_services(folder: Path) -> None:
    served = [dataclasses.replace(PROFILE, workload="my-service", batch_size=size, kind="infer") for size in (1, 4)]
    for profile in served:
        write_profile(profile, folder / "costs")
    forget_caches()

    trained = build_emulated_bench("nano", "my-net")
    inferred = build_emulated_bench("nano", "my-service", 4, kind="infer")
    jobs = load_job_tables(
        ConcurrentJobOptions(
            board="nano",
            train_workload="my-net",
            infer_workloads=("my-service",),
            max_latency_s=(1.0,),
            rate_hz=(1.0,),
            infer_batch_sizes="1,4",
        )
    )

    assert (trained.label, trained.workload.batch_size) == ("calibrated", 8)
    assert (inferred.label, inferred.workload.batch_size) == ("calibrated", 4)
    assert jobs.label == "calibrated"
    service = InferenceWork("my-service", None, (1, 4))
    assert [cost.label for cost in price_inference(catalogue.find("nano"), service)] == ["calibrated", "calibrated"]
