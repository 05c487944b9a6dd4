"""Boards and cost profiles of the user are found by name, wherever they come from; damaged ones are skipped."""

import dataclasses
import logging
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from contracts.boards import coefficients
from contracts.launching import SMALL

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


def test_a_board_and_a_profile_of_the_knowledge_are_named_in_an_experiment(folder, tmp_path):
    pytest.importorskip("torch", reason="the task of an experiment is tried")
    overrides = ["fleet=[{device: my-nano}, {device: nano}]", "workload.cost=my-net", "workload.batch_size=8"]
    experiment = load(tmp_path, *overrides)
    experiment_checks.check_experiment(experiment)
    other, own = (build_kind(board, experiment.workload) for board in list_boards(experiment))

    assert (other.spec.name, own.spec.name) == ("my-nano", "nano")
    assert (other.truth_label, own.truth_label) == ("estimated", "calibrated")
    assert "my-net.csv" in own.truth_source
    assert all("my-net" not in prior.source for prior in own.priors), "no prior is of the workload itself"


def test_without_the_folder_the_names_are_unknown(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDGE_KNOWLEDGE", raising=False)
    forget_caches()

    with pytest.raises(BadInput, match="my-nano"):
        experiment_checks.check_experiment(load(tmp_path, "fleet=[my-nano]"))
    with pytest.raises(BadInput, match=r"workload\.cost"):
        experiment_checks.check_experiment(load(tmp_path, "workload.cost=my-net", "workload.batch_size=8"))


def test_a_calibrated_workload_has_the_batch_size_of_its_table(folder, tmp_path):
    with pytest.raises(BadInput, match=r"workload\.batch_size: got 16; 8, at which my-net was calibrated"):
        experiment_checks.check_experiment(load(tmp_path, "workload.cost=my-net"))


def test_the_users_profile_replaces_the_one_of_fedge_for_the_same_board_and_workload(folder):
    shipped = next(one for one in load_calibrated_training() if one.workload == "resnet18-imagenet")
    write_profile(dataclasses.replace(PROFILE, device=shipped.device, workload=shipped.workload), folder / "costs")
    forget_caches()
    found = [
        one for one in load_calibrated_training() if (one.device, one.workload) == (shipped.device, shipped.workload)
    ]

    assert [one.batch_size for one in found] == [8]
    np.testing.assert_allclose(found[0].coefficients.time, PROFILE.coefficients.time, atol=1e-5)


def test_an_evaluation_leaves_out_the_users_profile_of_the_table_that_it_judges(folder):
    specs = catalogue.load_catalogue()
    for sources in (
        select_prior_sources("renamed", specs, unseen=TABLE_SHA),
        select_prior_sources("my-net", specs),
    ):
        assert all(one.workload != "my-net" for one in sources.rescaled_profiles)
    assert any(one.workload == "my-net" for one in select_prior_sources("vit-b16-cifar10", specs).rescaled_profiles)
    assert all("my-net" not in one.source for one in build_priors(specs["nano"], "x", specs, unseen=TABLE_SHA))


def test_damaged_files_and_taken_names_are_skipped_with_a_line(folder, caplog):
    add_board(folder / "boards", "nano")
    (folder / "boards" / "bad.yaml").write_text("name: bad", encoding="utf-8")
    (folder / "costs" / "bad.yaml").write_text("device: [", encoding="utf-8")
    forget_caches()

    with caplog.at_level(logging.WARNING):
        assert catalogue.find("my-nano").name == "my-nano"
        assert any(one.workload == "my-net" for one in load_calibrated_training())
    assert len(caplog.messages) == 3
    assert all("skipped" in message for message in caplog.messages)


def test_a_package_brings_boards_and_profiles_by_an_entry_point(tmp_path, monkeypatch):
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


def test_the_users_profiles_price_profiling_planning_and_services(folder):
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
