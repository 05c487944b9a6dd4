"""Which runs may have Ray's dashboard, what they are told, and how the head is started."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from contracts.launching import Launcher

from experiments.backends import launcher, ray_dashboard
from experiments.backends.ray_dashboard import RayDashboard, add_ray_exporter, check_dashboard, head_command
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment, ExporterSpec, FleetEntry

CLUSTER = {"RAY_ADDRESS": "10.0.0.5:6379"}


def _experiment(backend: str = "sim", **more: Any) -> Experiment:
    return Experiment(fleet=(FleetEntry(device="nano"),), backend=backend, **more)


@pytest.mark.parametrize(
    ("backend", "port", "env", "wrong"),
    [
        ("local", None, {}, "backend local"),
        ("local", None, CLUSTER, "backend local"),
        ("fleet", None, {}, "RAY_ADDRESS"),
        ("fleet", None, {"RAY_ADDRESS": "local"}, "RAY_ADDRESS"),
        ("sim", 8300, CLUSTER, "10.0.0.5:6379 has its own"),
        ("sim", None, {"RAY_ADDRESS": "ray://10.0.0.5:10001"}, "cluster's head"),
    ],
)
def test_a_run_that_cannot_be_shown_is_refused_with_what_would_help(backend, port, env, wrong):
    with pytest.raises(BadInput, match=wrong):
        check_dashboard(_experiment(backend=backend), port, env)


def test_a_ray_without_its_dashboard_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(ray_dashboard, "REQUIRED_MODULES", ("no_such_module.inside",))
    with pytest.raises(BadInput, match=r"pip install 'fedge\[ray-dashboard\]'"):
        check_dashboard(_experiment(), None, {})
    check_dashboard(_experiment(), None, CLUSTER)  # that cluster's own Ray has it, or says that it has not


def test_a_port_that_is_taken_is_refused_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(BadInput, match=rf"--ray-dashboard-port: got {port}, which is taken; another port"):
            check_dashboard(_experiment(), port, {})
    check_dashboard(_experiment(), port, {})


def test_a_simulation_is_mirrored_where_it_runs_and_a_fleet_on_the_cluster_named():
    assert add_ray_exporter(_experiment(), CLUSTER).exporters == (ExporterSpec(name="ray"),)
    fleet = add_ray_exporter(_experiment(backend="fleet"), CLUSTER)
    assert fleet.exporters == (ExporterSpec(name="ray", options={"address": "10.0.0.5:6379"}),)


def test_the_head_listens_on_loopback_and_no_port_is_a_fixed_one():
    told = head_command(Path("/short"), 8300, 4)
    options = dict(itertools.pairwise(told))
    assert options["--node-ip-address"] == options["--dashboard-host"] == "127.0.0.1"
    assert (options["--port"], options["--dashboard-port"], options["--temp-dir"]) == ("0", "8300", "/short/r")
    assert options["--dashboard-agent-listen-port"] == options["--max-worker-port"] == "0"
    assert int(options["--ray-client-server-port"]) < 30_000  # never one that a connection may have a second later
    assert int(options["--num-cpus"]) == min(4, os.cpu_count() or 1)
    assert not [word for word in told if "token" in word.lower()]
    assert "--block" not in told  # with it, one part that is late ends all others


def test_the_address_is_printed_with_the_file_of_the_token_and_not_with_the_token():
    told = str(RayDashboard("http://127.0.0.1:8265", Path("/short/token")))
    assert told == "Ray dashboard: http://127.0.0.1:8265 until the run ends; it asks for the token in /short/token"
    assert str(RayDashboard("http://10.0.0.5:8265")) == "Ray dashboard: http://10.0.0.5:8265"


def test_on_the_command_line_the_local_backend_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    file = tmp_path / "exp.yaml"
    file.write_text("backend: local\nfleet: [{device: nano}]\n")
    told = Launcher(monkeypatch, capsys)("run", file, "--ray-dashboard", "--folder", tmp_path / "run")
    assert told.code == 2
    assert "--ray-dashboard: got backend local" in told.message
    assert not (tmp_path / "run").exists()


def test_being_shown_is_no_part_of_the_experiment_and_does_not_stay_in_its_file(tmp_path, monkeypatch, capsys):
    played = []

    def play(experiment: Experiment, *_: object) -> None:
        played.append([spec.name for spec in experiment.exporters])
        raise RunFailed("as wanted")

    monkeypatch.setattr(launcher, "_load_backend", lambda _: play)
    monkeypatch.setattr(ray_dashboard, "open_dashboard", lambda *_: nullcontext(RayDashboard("http://127.0.0.1:8265")))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    fedge, file = Launcher(monkeypatch, capsys), tmp_path / "exp.yaml"
    file.write_text("backend: sim\nfleet: [{device: nano}]\nexporters: [tensorboard]\n")
    told = fedge("run", file, "--ray-dashboard", "--folder", tmp_path / "run")
    assert "Ray dashboard: http://127.0.0.1:8265" in told.out
    assert fedge("resume", tmp_path / "run").code == fedge("resume", tmp_path / "run", "--ray-dashboard").code == 1
    assert played == [["tensorboard", "ray"], ["tensorboard"], ["tensorboard", "ray"]]
