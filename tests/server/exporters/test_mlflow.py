"""MLflow's own client finds every figure of a run, its parameters, labels and files."""

import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contracts.exporter import ExporterContract, Figures, fleet_of, round_of, rows_of

from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.telemetry.store_records import RECORDED, EventRow
from server.exporters import Exporter
from server.exporters.mlflow import RUNS, STORE, MLflow, build_mlflow_client

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("mlflow"),  # its start-up is paid once
    pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="the extra mlflow is not installed"),
]


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to make one."""
    path = tmp_path_factory.mktemp("store") / STORE
    build_mlflow_client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(autouse=True)
def _prepared(empty_store: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    if request.cls is not None:
        request.cls.empty_store = empty_store
    yield
    _forget_engines()


def _forget_engines() -> None:
    """MLflow keeps the files of every store open that it ever had."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():
        engine.dispose()


def run_in(folder: Path) -> Any:
    """The only run of the only experiment in the store of a run folder."""
    client = build_mlflow_client(f"sqlite:///{folder / 'mlflow' / STORE}")
    groups = [each.experiment_id for each in client.search_experiments() if each.name != "Default"]
    [run] = client.search_runs(groups)
    return run


class TestMLflow(ExporterContract):
    empty_store: Path

    def make(self, experiment: Experiment, folder: Path, **options: str) -> Exporter:
        store = folder / "mlflow" / STORE
        if not store.exists():
            store.parent.mkdir()
            shutil.copyfile(self.empty_store, store)
        return MLflow(experiment, folder, **options)

    def read(self, folder: Path) -> Figures:
        client, run = build_mlflow_client(f"sqlite:///{folder / 'mlflow' / STORE}"), run_in(folder)
        history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        return {name: sorted((m.step, m.value) for m in values) for name, values in history.items()}

    def test_parameters_are_the_experiment_and_tags_how_its_figures_came_about(self, tmp_path):
        self.told(tmp_path, round_of(1))

        run = run_in(tmp_path)
        assert run.data.params["policy.name"] == "balanced"
        assert run.data.params["fleet"] == "1 x nano, 1 x xavier-nx"
        assert run.data.tags["fedge.label.nano"] == "estimated"
        assert run.info.run_name == tmp_path.name

    def test_a_recorded_board_of_a_real_fleet_is_not_called_measured(self, tmp_path):
        experiment = fleet_of().model_copy(update={"backend": "fleet"})
        recorded = EventRow(0.0, 0, "xavier-nx-1", RECORDED, "a folder")

        self.told(tmp_path, [recorded], round_of(1), experiment=experiment)

        tags = run_in(tmp_path).data.tags
        assert (tags["fedge.label.nano"], tags["fedge.label.xavier-nx"]) == ("measured", "estimated")

    @pytest.mark.parametrize(
        ("rounds", "events", "status"),
        [(2, (), "FAILED"), (3, (), "FINISHED"), (2, [EventRow(40.0, 3, None, "budget", "spent")], "FINISHED")],
    )
    def test_it_is_finished_after_every_round_or_at_the_end_of_the_energy_budget(
        self, tmp_path, rounds, events, status
    ):
        self.told(tmp_path, rows_of(rounds), list(events))

        assert run_in(tmp_path).info.status == status

    def test_report_and_summary_are_kept_also_afterwards(self, tmp_path):
        self.told(tmp_path, rows_of())
        for name in ("report.html", "summary.json"):
            (tmp_path / name).write_text("{}", encoding="utf-8")

        exporter = self.make(fleet_of(), tmp_path)
        exporter.keep([tmp_path / "report.html", tmp_path / "summary.json"])
        exporter.close()

        run = run_in(tmp_path)
        kept = {path.name for path in (tmp_path / "mlflow" / "artifacts").rglob("*") if path.is_file()}
        assert kept == {"report.html", "summary.json", "experiment.yaml"}
        assert run.info.status == "FINISHED"

    def test_a_run_that_was_deleted_there_is_begun_anew(self, tmp_path):
        self.told(tmp_path, round_of(1))
        first = run_in(tmp_path).info.run_id
        build_mlflow_client(f"sqlite:///{tmp_path / 'mlflow' / STORE}").delete_run(first)

        self.told(tmp_path, round_of(1), round_of(2))

        assert run_in(tmp_path).info.run_id != first

    def test_its_own_telemetry_is_off(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
        self.told(tmp_path, round_of(1))

        from mlflow.telemetry.utils import is_telemetry_disabled

        assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
        assert is_telemetry_disabled()
        assert not logging.getLogger("mlflow").isEnabledFor(logging.INFO)


def test_a_password_in_the_address_is_refused_without_being_repeated():
    with pytest.raises(BadInput, match="MLFLOW_TRACKING_PASSWORD") as error:
        MLflow.check_options(tracking_uri="http://me:secret@host:5000")

    assert "secret" not in str(error.value)


def test_a_folder_beside_an_address_is_refused():
    with pytest.raises(BadInput, match=r"options.out: got 'here'; no folder beside a tracking_uri"):
        MLflow.check_options(tracking_uri="http://host:5000", out="here")


def test_a_server_that_is_not_there_fails_within_seconds_and_leaves_no_run_behind(tmp_path):
    exporter = MLflow(fleet_of(), tmp_path, tracking_uri="http://127.0.0.1:9")

    with pytest.raises(Exception, match=r"127\.0\.0\.1"):
        exporter.append(round_of(1))

    assert not (tmp_path / "mlflow" / RUNS).exists()
