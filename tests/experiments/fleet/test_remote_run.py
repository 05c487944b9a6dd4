"""A run on another machine: over a real sshd on loopback where one is installed, else with a shell in its place."""

import getpass
import io
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import typer
import yaml
from contracts.processes import wait_for

from experiments.cli.main import app
from experiments.fleet import remote_run, server_connection
from experiments.fleet.inventory import InventoryHost
from experiments.fleet.remote_run import EXPERIMENT, pack_experiment
from experiments.fleet.server_connection import ServerConnection
from experiments.spec.experiment_loader import load_experiment
from fedge.devices.energy_signal import build_signal
from fedge.errors import BadInput, RunFailed

pytestmark = [pytest.mark.fleet, pytest.mark.slow]
FEDGE = """#!{python}
import pathlib, sys, time
import yaml
_, command, config, option, out = sys.argv
told, run = yaml.safe_load(open(config)), pathlib.Path(out)
run.mkdir()
(run / ".flwr").mkdir()
(run / "where").write_text(str(pathlib.Path.cwd()))
print("round 1", flush=True)
try:
    if told["rounds"] == 77:
        time.sleep(600)
except KeyboardInterrupt:
    (run / "interrupted").touch()
    sys.exit(130)
if told["rounds"] == 78:
    sys.exit("it broke")
task = pathlib.Path(config).parent / told["workload"]["task"]
(run / "task").write_text(task.read_text() if task.is_file() else told["workload"]["task"])
print("round 2", flush=True)
"""
SUDO = """#!/bin/sh
[ "$1 $2" = "-n -u" ] || exit 9
[ "$3" = fedge-link ] || { echo "sudo: a password is required" >&2; exit 1; }
shift 3
exec "$@"
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The server's folder: its environment with a stand-in for fedge, its runs, and a stand-in for sudo."""
    folder = tmp_path / "there"
    program(folder / "venv/bin/fedge", FEDGE.format(python=sys.executable))
    program(folder / "venv/bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program(folder / "bin/sudo", SUDO)
    return folder


@pytest.fixture
def sshd(tmp_path: Path, there: Path) -> Iterator[InventoryHost]:
    """An sshd of our own on loopback that lets a throwaway key in."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None or not shutil.which("ssh-keygen") or not shutil.which("ssh"):
        pytest.skip("needs sshd, ssh and ssh-keygen")
    if os.geteuid() == 0 and "sshd" not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip("as root, sshd needs its user")
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    port = _free_port()
    (tmp_path / "authorized").write_bytes((tmp_path / "key.pub").read_bytes())
    host = (tmp_path / "host.pub").read_text(encoding="utf-8")
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {host}", encoding="utf-8")
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nPidFile none\nStrictModes no\nUsePAM no\n"
        f"AuthorizedKeysFile {tmp_path}/authorized\nSetEnv PATH={there}/bin:/usr/bin:/bin\n",
        encoding="utf-8",
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with (tmp_path / "sshd.log").open("wb") as log:
        process = subprocess.Popen([found, "-D", "-e", "-f", tmp_path / "sshd_config"], stdout=log, stderr=log)
    try:
        wait_for(lambda: process.poll() is not None or _listens(port))
        assert process.poll() is None, (tmp_path / "sshd.log").read_text(encoding="utf-8")
        yield _member(
            there,
            ansible_host="127.0.0.1",
            ansible_port=port,
            ansible_user=getpass.getuser(),
            ansible_ssh_private_key_file=str(tmp_path / "key"),
            ansible_ssh_common_args=f"-F none -o IdentitiesOnly=yes -o UserKnownHostsFile={tmp_path}/known",
        )
    finally:
        process.terminate()
        process.wait(10)


def _member(there: Path, **more: object) -> InventoryHost:
    ours = {"superlink_runs": str(there / "runs"), "superlink_environment": str(there / "venv")}
    return InventoryHost("hub", {**ours, **more})


@pytest.fixture(params=["sshd", "shell"])
def server(request: pytest.FixtureRequest, there: Path, monkeypatch: pytest.MonkeyPatch) -> ServerConnection:
    if request.param == "sshd":
        return server_connection.build_connection(request.getfixturevalue("sshd"))
    monkeypatch.setenv("PATH", f"{there}/bin:{os.environ['PATH']}")
    return server_connection.build_connection(_member(there, ansible_connection="local"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def experiment(folder: Path, rounds: int = 1, **more: object) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    record = {"backend": "fleet", "rounds": rounds, "fleet": [{"device": "nano"}], **more}
    (folder / "exp.yaml").write_text(yaml.safe_dump(record), encoding="utf-8")
    return pack_experiment(load_experiment(folder / "exp.yaml"))


def test_the_file_of_a_signal_goes_along(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "carbon.csv").write_text("at_s,all\n0,360\n", encoding="utf-8")
    packed = experiment(here, signal="carbon.csv")
    (here / "carbon.csv").unlink()
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(there, filter="data")
    assert build_signal(load_experiment(there / EXPERIMENT)).zones.mean == 360.0


def silent(_line: str) -> None:
    """Say nothing."""


@contextmanager
def once(holds: Callable[[], object], act: Callable[[], object]) -> Iterator[None]:
    """Act from the side as soon as something holds, while the block goes on."""

    def wait() -> None:
        wait_for(holds)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text(encoding="utf-8").split()]


def _our(program_: str) -> Sequence[int]:
    return [
        pid for pid in _children_of(os.getpid()) if Path(f"/proc/{pid}/comm").read_text("utf-8").strip() == program_
    ]


def test_an_experiment_is_sent_played_and_fetched(server, tmp_path, capfd):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "task.py").write_text("# my own task", encoding="utf-8")
    job = remote_run.send_bundle(server, experiment(tmp_path / "mine", workload={"task": "task.py"}), "exp")
    code = remote_run.follow_run(server, job, {}, silent)
    fetched = remote_run.fetch_folder(server, job, tmp_path / "runs" / "exp-1")

    assert (code, fetched) == (0, True)
    assert capfd.readouterr().out.split("\n")[:2] == ["round 1", "round 2"]
    assert {path.name for path in (tmp_path / "runs" / "exp-1").iterdir()} == {"where", "task"}
    assert (tmp_path / "runs" / "exp-1" / "task").read_text(encoding="utf-8") == "# my own task"
    assert (tmp_path / "runs" / "exp-1" / "where").read_text(encoding="utf-8") == job
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["exp-1"]


def test_what_is_sent_can_be_read_by_the_group_of_the_runs_and_by_nobody_else(server, tmp_path):
    job = remote_run.send_bundle(server, experiment(tmp_path), "exp")

    assert stat.S_IMODE(Path(job).stat().st_mode) == 0o750


def test_two_runs_of_one_name_have_folders_of_their_own(server, tmp_path):
    packed = experiment(tmp_path)

    assert remote_run.send_bundle(server, packed, "exp") != remote_run.send_bundle(server, packed, "exp")


def test_a_failed_run_s_exit_code_and_folder_come_too(server, tmp_path):
    job = remote_run.send_bundle(server, experiment(tmp_path, rounds=78), "exp")

    assert remote_run.follow_run(server, job, {}, silent) == 1
    assert remote_run.fetch_folder(server, job, tmp_path / "run")
    assert (tmp_path / "run" / "where").is_file()


def test_ctrl_c_here_interrupts_the_run_there_and_waits_for_its_end(server, tmp_path):
    job = remote_run.send_bundle(server, experiment(tmp_path, rounds=77), "exp")
    said: list[str] = []
    ctrl_c = once((Path(job) / "run" / "where").is_file, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), ctrl_c:
        remote_run.follow_run(server, job, {}, said.append)

    assert (Path(job) / "run" / "interrupted").is_file()
    assert "stopping the run on hub" in said[0]
    assert remote_run.fetch_folder(server, job, tmp_path / "run")


def test_a_connection_that_is_lost_ends_the_run_and_says_how_to_go_on(sshd, tmp_path):
    server = server_connection.build_connection(sshd)
    job = remote_run.send_bundle(server, experiment(tmp_path, rounds=77), "exp")
    lost = once((Path(job) / "run" / "where").is_file, lambda: [os.kill(pid, signal.SIGKILL) for pid in _our("ssh")])
    with pytest.raises(RunFailed, match=f"resume {job}/run"), lost:
        remote_run.follow_run(server, job, {}, silent)

    wait_for((Path(job) / "run" / "interrupted").is_file)


def test_a_run_without_a_folder_fetches_nothing(server, tmp_path):
    job = remote_run.send_bundle(server, experiment(tmp_path), "exp")

    assert not remote_run.fetch_folder(server, job, tmp_path / "runs" / "run")
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        ("yes", "not fetched: .*(header|tar)"),
        ("head -c 300000 /dev/zero | tr '\\0' e >&2; tar -cf - .; exit 1", "not fetched: hub: e{100}"),
    ],
    ids=["no tar, for ever", "more errors than a pipe holds"],
)
def test_a_transfer_that_goes_wrong_ends_and_is_told(server, tmp_path, monkeypatch, sender, message):
    monkeypatch.setattr(type(server), "command", lambda *_: ["sh", "-c", f"cd {tmp_path}; {sender}"])
    with pytest.raises(RunFailed, match=message):
        remote_run.fetch_folder(server, "job", tmp_path / "runs" / "run")

    assert not list((tmp_path / "runs").iterdir())


def test_a_server_that_lets_nobody_in_is_told_with_what_to_try(sshd, tmp_path):
    (tmp_path / "authorized").write_text("", encoding="utf-8")
    with pytest.raises(RunFailed, match=r"hub: .*Permission denied.*by hand"):
        remote_run.send_bundle(server_connection.build_connection(sshd), b"", "exp")


def test_a_server_that_is_not_who_it_was_is_refused(sshd, tmp_path):
    (tmp_path / "known").write_text("", encoding="utf-8")
    with pytest.raises(RunFailed, match="Host key verification failed"):
        remote_run.send_bundle(server_connection.build_connection(sshd), b"", "exp")


def test_an_account_that_may_not_become_the_superlink_s_is_told_what_to_change(server):
    with pytest.raises(RunFailed, match="NOPASSWD"):
        remote_run.send_bundle(replace(server, user="somebody"), b"", "exp")


def test_a_server_without_fedge_is_told_to_provision(server):
    with pytest.raises(RunFailed, match="fedge fleet provision"):
        remote_run.send_bundle(replace(server, environment="/not/there"), b"", "exp")


def test_a_server_whose_environment_lacks_fedge_says_so_without_a_traceback(server, there, tmp_path, capfd):
    job = remote_run.send_bundle(server, experiment(tmp_path), "exp")
    (there / "venv/bin/fedge").unlink()

    assert remote_run.follow_run(server, job, {}, silent) == 1
    said = capfd.readouterr().err
    assert "fedge fleet provision" in said
    assert "Traceback" not in said


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_sent(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BadInput, match="--folder"):
        remote_run.prepare_folder(tmp_path / "file" / "run")
    remote_run.prepare_folder(tmp_path / "runs" / "run")

    assert list((tmp_path / "runs").iterdir()) == []


def test_a_bundle_has_every_file_that_the_experiment_names_under_its_own_name(tmp_path):
    for folder, name in (("a", "first.py"), ("b", "second.py"), ("c", "task.py")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(folder, encoding="utf-8")
    (tmp_path / "b" / "second.py").write_text("import beside", encoding="utf-8")
    (tmp_path / "b" / "beside.py").write_text("next", encoding="utf-8")
    packed = experiment(tmp_path, plugins=["a/first.py", "b/second.py"], workload={"task": "c/task.py"})
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(tmp_path / "there", filter="data")
    arrived = load_experiment(tmp_path / "there" / EXPERIMENT)

    assert [Path(path).name for path in arrived.plugins] == ["first.py", "second.py"]
    assert [Path(path).read_text(encoding="utf-8") for path in (*arrived.plugins, arrived.workload.task)] == [
        "a",
        "import beside",
        "c",
    ]
    assert Path(arrived.plugins[1]).with_name("beside.py").read_text(encoding="utf-8") == "next"


def test_the_command_that_imports_profiles_on_the_server_is_one_that_fedge_knows():
    command = typer.main.get_command(app)
    for word in remote_run.IMPORT_COMMAND[:-1]:
        command = command.commands[word]
    words = [remote_run.IMPORT_COMMAND[-1], "/knowledge", "nano-1/nano/train/resnet18.csv"]
    assert "/knowledge" in command.make_context("import", words).params.values()
