"""Sweeps and simulations on a cluster of several machines: one sees nothing of the checkout, one is lost on the way.

The machines are raylets of this one. The second has a mount namespace and a host name of its own, in which the checkout
and the sweep's folder are hidden; what it runs is a copy of the package.
"""

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from contracts.processes import wait_for

from experiments.backends.sim_backend import find_free_port
from fedge.studies.ray_session import choose_port
from fedge.studies.task_pool import PACKAGES
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 400.0
"""Limit for a step on a busy machine, in seconds."""
OTHER = "other-machine"
RAY_PROGRAM = """
from ray import _raylet
from ray._private import utils
from ray._private.node import Node
from ray.scripts.scripts import main

# Without the agent for the dashboard, for which a raylet waits 15 s: too short on a busy machine.
utils.get_dashboard_dependency_error = lambda: ImportError("not needed")
start = Node.start_raylet

def start_raylet(self, *args, **options):
    for name in ("METRICS_AGENT_PORT", "METRICS_EXPORT_PORT", "DASHBOARD_AGENT_LISTEN_PORT"):
        _raylet.persist_port(self._session_dir, self._node_id, getattr(_raylet, f"{name}_NAME"), -1)
    start(self, *args, **options)

Node.start_raylet = start_raylet
main()
"""
JOBS_MODULE = '''
"""Jobs that leave a mark when they start and another one when they end."""
import os, platform, time
from pathlib import Path

FOLDER = Path(__file__).parent / "marks"

def run(job):
    (FOLDER / f"{job}.started.{time.time_ns()}").touch()
    time.sleep(0.5)
    (FOLDER / f"{job}.ended.{platform.node()}").touch()
    return job * job
'''
DRIVER_PROGRAM = """
import marked_jobs
from fedge.studies.task_pool import run_jobs
print(run_jobs(marked_jobs.run, list(range(10)), lambda _: None, 2))
"""


@dataclass
class Machines:
    """A cluster: a head without cores, and raylets with one core each.

    Attributes:
        place: A folder that all of them see, with a copy of the package in ``site`` and of the environment in ``venv``.
        hidden: Folders that the other machine does not see.
    """

    place: Path
    hidden: tuple[Path, ...]
    host: str
    port: int
    env: dict[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def site(self) -> Path:
        return self.place / "site"

    def start(self, *options: str, apart: bool = False) -> subprocess.Popen[bytes]:
        """Start a raylet."""
        words = ["start", "--node-ip-address", self.host, "--object-store-memory", "100000000", "--block", *options]
        words += ["--runtime-env-agent-port", str(choose_port()), "--min-worker-port", "0", "--max-worker-port", "0"]
        command, env = [sys.executable, "-c", RAY_PROGRAM, *words], self.env | {"PYTHONPATH": f"{ROOT}:{self.site}"}
        if apart:
            python = self.place / "venv" / Path(sys.executable).relative_to(sys.prefix)
            hide = [f"mount -t tmpfs none {shlex.quote(str(folder))}" for folder in self.hidden]
            prepare = [f"hostname {OTHER}", f"mount --bind {sys.prefix} {self.place / 'venv'}", *hide, "cd /"]
            script = " && ".join([*prepare, 'exec "$0" "$@"'])
            command = ["unshare", "-m", "-u", "sh", "-ec", script, str(python), *command[1:]]
            env = self.env | {"PYTHONPATH": str(self.site)}
        log = self.place / f"raylet-{len(self.started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.started.append(process)
        wait_for(lambda: "Ray runtime started" in log.read_text() or process.poll() is not None, log, LIMIT_S)
        assert process.poll() is None, log.read_text()[-3000:]
        return process

    def end(self) -> None:
        for process in reversed(self.started):
            process.kill()  # what it started ends with it
            process.wait()

    def driver_env(self) -> dict[str, str]:
        return self.env | {"RAY_ADDRESS": self.address, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "-u", "true"], check=False).returncode:
        pytest.skip("needs to make mount namespaces")
    place = Path(tempfile.mkdtemp(prefix="fedge-ray-", dir="/tmp"))
    (place / "venv").mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, place / "site" / name, ignore=shutil.ignore_patterns("__pycache__"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    # Busy machines: Ray waits, and ends no process where others need the memory.
    env |= {"RAY_agent_register_timeout_ms": "300000", "RAY_memory_monitor_refresh_ms": "0"}
    from ray._private.services import get_node_ip_address

    # Several raylets on loopback are no cluster for Ray.
    hidden, host = (ROOT, tmp_path_factory.getbasetemp()), get_node_ip_address()
    found = Machines(place, hidden, host, find_free_port(), env)
    try:
        ports = ["--port", str(found.port), "--ray-client-server-port", str(find_free_port())]
        found.start("--head", "--num-cpus", "0", "--include-dashboard", "false", "--temp-dir", str(place / "r"), *ports)
        yield found
    finally:
        found.end()
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def add_machine(machines: Machines) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start raylets that end with the test."""
    own: list[subprocess.Popen[bytes]] = []

    def start(*, apart: bool) -> subprocess.Popen[bytes]:
        own.append(machines.start("--address", machines.address, "--num-cpus", "1", apart=apart))
        return own[-1]

    yield start
    for process in own:
        process.kill()
        process.wait()


def run_sweep(machines: Machines, config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.cli", "sweep", str(config), "--folder", str(out)]
    env = machines.driver_env()
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT)


@pytest.mark.slow
def test_a_machine_without_the_drivers_folders_runs_points(machines, add_machine, write_sweep, tmp_path):
    add_machine(apart=True)
    config = write_sweep(grid={"policy": ["balanced", "maxn"]})

    done = run_sweep(machines, config, tmp_path / "out")

    assert done.returncode == 0, done.stderr
    records = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("points/*/point.json")]
    assert [record["machine"] for record in records] == [OTHER] * 2
    assert "2 of 2 points" in done.stdout


@pytest.mark.slow
@pytest.mark.long
def test_another_fedge_on_a_machine_ends_the_sweep_with_both_versions(machines, add_machine, write_sweep, tmp_path):
    source = machines.site / "fedge" / "types.py"
    original = source.read_text()
    source.write_text(f"{original}\n# another state\n")
    try:
        add_machine(apart=True)
        done = run_sweep(machines, write_sweep(grid={"policy": ["balanced", "maxn"]}), tmp_path / "out")
    finally:
        source.write_text(original)

    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("fedge: fedge on Ray's machines: got 0.1.0 (sources ")
    assert f" on {OTHER}; 0.1.0 (sources " in last


@pytest.mark.slow
@pytest.mark.long
def test_of_a_machine_that_is_lost_only_its_tasks_are_repeated(machines, add_machine):
    (machines.site / "marked_jobs.py").write_text(JOBS_MODULE)
    marks = machines.site / "marks"
    marks.mkdir()
    add_machine(apart=True)
    lost = add_machine(apart=False)
    env = machines.driver_env()
    env["PYTHONPATH"] += f":{machines.site}"
    here = os.uname().nodename
    driver = subprocess.Popen([sys.executable, "-c", DRIVER_PROGRAM], env=env, stdout=subprocess.PIPE, text=True)

    wait_for(
        lambda: driver.poll() is not None or all(list(marks.glob(f"*.ended.{name}")) for name in (here, OTHER)),
        "a point ended on both",
        LIMIT_S,
    )
    assert driver.poll() is None
    lost.send_signal(signal.SIGKILL)
    before = {path.name.partition(".")[0] for path in marks.glob("*.ended.*")}
    output, _ = driver.communicate(timeout=LIMIT_S)

    assert json.loads(output) == [job * job for job in range(10)]
    attempts = Counter(path.name.partition(".")[0] for path in marks.glob("*.started.*"))
    assert len(attempts) == 10
    repeated = {job for job, count in attempts.items() if count > 1}
    assert not repeated & before
    assert len(repeated) <= 2
    assert sum(attempts.values()) <= 12


SIMULATION = """\
name: simulation
rounds: 60
fleet:
  - {device: nano, count: 4}
workload: {task: digits-cnn, local_epochs: 0.1}
"""


def start_run(machines: Machines, backend: str, out: Path) -> subprocess.Popen[str]:
    (machines.place / "simulation.yaml").write_text(SIMULATION)
    words = ["run", str(machines.place / "simulation.yaml"), "--backend", backend, "--folder", str(out)]
    command = [sys.executable, "-m", "experiments.cli", *words]
    env, pipe = machines.driver_env(), subprocess.PIPE
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.long
def test_a_simulation_that_loses_a_machine_goes_on_from_its_checkpoint_with_equal_rows(machines, add_machine):
    add_machine(apart=True)
    lost = add_machine(apart=False)
    folders = {backend: machines.place / backend for backend in ("sim", "local")}
    driver = start_run(machines, "sim", folders["sim"])

    played = folders["sim"] / "checkpoints"
    wait_for(lambda: driver.poll() is not None or list(played.glob("round-000001.*")), "a round", LIMIT_S)
    lost.send_signal(signal.SIGKILL)
    _, said = driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == 0, said[-3000:]
    assert start_run(machines, "local", folders["local"]).wait(LIMIT_S) == 0

    rows, expected = (read_rows(folder, ClientRow) for folder in folders.values())
    assert {row.error for row in rows} == {None}
    assert rows == expected
    assert "a machine of the Ray cluster was lost" in said


@pytest.mark.slow
def test_a_machine_that_does_not_see_the_run_folder_ends_a_simulation_before_it_begins(machines, add_machine, tmp_path):
    add_machine(apart=True)
    driver = start_run(machines, "sim", tmp_path / "run")
    _, said = driver.communicate(timeout=LIMIT_S)

    assert driver.returncode == 2, said
    last = said.splitlines()[-1]
    assert last.startswith(f"fedge: fedge on Ray's machines: got no folder {tmp_path / 'run' / 'app'} on {OTHER}; ")
    assert " (sources " in last
