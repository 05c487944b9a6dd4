"""A run on the fleet's server from another machine: send the experiment, follow it there, fetch its folder."""

from __future__ import annotations

import io
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import yaml

from experiments.fleet.inventory import Member
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment

LINK_USER, LINK_HOME = "fedge-link", "/var/lib/fedge-link"
ENVIRONMENT = "/usr/lib/fedge-server/venv"
"""Where the server's fedge is unless the inventory's superlink_environment says otherwise."""
CA = "/etc/fedge/tls/ca.crt"
COORDINATES = (
    *("ansible_connection", "ansible_host", "ansible_port", "ansible_user", "ansible_ssh_private_key_file"),
    *("ansible_ssh_common_args", "ansible_ssh_extra_args"),
    *("superlink_runs", "superlink_environment", "superlink_user", "superlink_port"),
)
"""What of the inventory is needed to get to the server and around on it."""
SSH_FAILED = 255
STOP_WITHIN_S = 90.0
"""How long an interrupted run may take to end on the server: its boards are told first. Chosen by us."""
COPY_WITHIN_S = 120.0
"""Sending an experiment is a matter of kilobytes; chosen by us."""
CONNECTION = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    # A server that is gone is noticed within a minute.
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
)
HOLDER = f"""
import os, signal, subprocess, sys, threading
os.chdir(sys.argv[1])
run = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True)
def stop():
    while os.read(0, 64):
        pass
    if run.poll() is None:
        run.send_signal(signal.SIGINT)
        try:
            run.wait({STOP_WITHIN_S:g} / 2)
        except subprocess.TimeoutExpired:
            run.terminate()
threading.Thread(target=stop, daemon=True).start()
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda *_: run.send_signal(signal.SIGINT))
code = run.wait()
sys.stdout.flush()
os._exit(code if code >= 0 else 128 - code)
"""
"""Holds a run on the server: it interrupts the run as soon as the sender closes its end, or is gone."""
RECEIVER = """
import os, sys, tarfile, tempfile
os.umask(0o027)
os.makedirs(sys.argv[1], exist_ok=True)
job = tempfile.mkdtemp(prefix=sys.argv[2] + "-", dir=sys.argv[1])
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
    tar.extractall(job, filter="data")
print(job)
"""
"""Unpacks what is sent into a fresh folder and tells its path."""
EXPERIMENT = "experiment.yaml"
RUN = "run"
"""The run's folder in the job's."""
OWN = ("./.flwr", "./app")
"""What of a run folder is Flower's own and stays there: its state, and the copy of the programs."""


@dataclass(frozen=True, slots=True)
class Server:
    """The fleet's server: how commands get there (a prefix of argv), and where things are on it."""

    name: str
    way: tuple[str, ...]
    runs: str = f"{LINK_HOME}/runs"
    environment: str = ENVIRONMENT
    user: str = LINK_USER
    port: int = 8000

    def command(self, *words: str, variables: Mapping[str, str] | None = None) -> list[str]:
        """``words`` as the SuperLink's user on the server, quoted for the shell that ssh starts there."""
        env = {"PATH": f"{self.environment}/bin:/usr/bin:/bin", "HOME": LINK_HOME, **(variables or {})}
        pairs = [f"{key}={value}" for key, value in env.items()]
        return [*self.way, shlex.join(["sudo", "-n", "-u", self.user, "env", *pairs, *words])]

    @property
    def python(self) -> tuple[str, ...]:
        """Its Python, blind to the folder that it is started in."""
        return (f"{self.environment}/bin/python", "-I", "-c")


def server_of(member: Member) -> Server:
    """The server as the inventory describes it to Ansible; raises ``BadInput`` for what only Ansible could fill in."""
    for key in COORDINATES:
        if "{{" in member.text(key):
            right = f"plain text: `fedge fleet run` uses it without Ansible ({member.text(key)})"
            raise BadInput(f"{key} of {member.name}", "an expression or a vault", right)
    return Server(
        name=member.name,
        way=way_to(member),
        runs=member.text("superlink_runs") or f"{LINK_HOME}/runs",
        environment=member.text("superlink_environment") or ENVIRONMENT,
        user=member.text("superlink_user") or LINK_USER,
        port=int(member.text("superlink_port") or 8000),
    )


def way_to(member: Member) -> tuple[str, ...]:
    """The argv that runs one more word, a shell command, on the host: ssh, or a shell where it is this machine."""
    if member.text("ansible_connection") == "local":
        return ("sh", "-c")
    options = list(CONNECTION)
    for flag, key in (("-p", "ansible_port"), ("-l", "ansible_user"), ("-i", "ansible_ssh_private_key_file")):
        if member.text(key):
            value = member.text(key)
            options += [flag, str(Path(value).expanduser()) if flag == "-i" else value]
    for key in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        options += shlex.split(member.text(key))
    return ("ssh", *options, "--", member.text("ansible_host") or member.name)


def bundle(experiment: Experiment) -> bytes:
    """A tar of the experiment and of every file of this machine that it names, under names that hold on the server.

    A module keeps its file's name, which is what it is imported by; a folder of data is the server's own.
    """
    files: list[Path] = []

    def sent(text: str) -> str:
        path = Path(text)
        if path not in files:
            files.append(path)
        return f"files/{files.index(path)}/{path.name}"

    record = experiment.model_dump(mode="json")
    record["plugins"] = [sent(plugin) for plugin in experiment.plugins]
    if experiment.workload.task.endswith(".py"):
        record["workload"]["task"] = sent(experiment.workload.task)
    for raw, entry in zip(record["fleet"], experiment.fleet, strict=True):
        raw["references"] = [sent(path) for path in entry.references]
        if entry.device.endswith((".yaml", ".yml")):
            raw["device"] = sent(entry.device)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        text = yaml.safe_dump(record, sort_keys=False).encode()
        tar.addfile(_described(EXPERIMENT, len(text)), io.BytesIO(text))
        for path in files:
            content = path.read_bytes()
            tar.addfile(_described(sent(str(path)), len(content)), io.BytesIO(content))
    return packed.getvalue()


def _described(name: str, size: int) -> tarfile.TarInfo:
    told = tarfile.TarInfo(name)
    told.size, told.mode = size, 0o640
    return told


def send(server: Server, packed: bytes, name: str) -> str:
    """Unpack a bundle into a fresh folder on the server and return its path there; raises ``RunFailed``."""
    command = server.command(*server.python, RECEIVER, server.runs, name)
    try:
        done = subprocess.run(command, input=packed, capture_output=True, timeout=COPY_WITHIN_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{server.name} took longer than {COPY_WITHIN_S:g} s for the experiment") from error
    except OSError as error:
        raise RunFailed(f"{command[0]} cannot be started ({error.strerror}); install openssh-client") from error
    if done.returncode != 0:
        raise RunFailed(trouble(server, done.returncode, done.stderr.decode("utf-8", "replace")))
    return done.stdout.decode().strip().splitlines()[-1]


def trouble(server: Server, code: int, stderr: str) -> str:
    """Why a command did not work on the server, with what to do about it."""
    said = " ".join(stderr.split()) or f"exit code {code} and not a word"
    lower, user = said.lower(), server.user
    cure = "`fedge fleet provision` puts everything there that is needed"
    if code == SSH_FAILED:
        by_hand = shlex.join(["ssh", *(word for word in server.way[1 + len(CONNECTION) :] if word != "--")])
        cure = f"try `{by_hand}` by hand: it has to work without a question, no password is ever asked for"
    elif "password is required" in lower or "not allowed" in lower or "not in the sudoers" in lower:
        cure = f"let your account there run commands as {user} without a password (sudoers: NOPASSWD)"
    elif "sudo" in lower and "not found" in lower:
        cure = "install sudo there"
    return f"{server.name}: {said}; {cure}"


def follow(server: Server, job: str, variables: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Run the experiment of a job on the server, its output on this terminal; returns the exit code of ``fedge run``.

    Ctrl-C here, or this program's end, interrupts the run there, so that no board works on for nobody; then
    ``KeyboardInterrupt`` is raised. Raises ``RunFailed`` when the connection is lost, which ends the run as well.
    """
    fedge = [f"{server.environment}/bin/fedge", "run", f"{job}/{EXPERIMENT}", "--out", f"{job}/{RUN}"]
    command = server.command(*server.python, HOLDER, job, *fedge, variables=variables)
    sys.stdout.flush()
    # A session of its own: Ctrl-C must not end ssh before the run there has ended.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        with _terminable():
            code = process.wait()
    except KeyboardInterrupt:
        say(f"stopping the run on {server.name}; Ctrl-C again does not wait for it")
        _stop(process)
        raise
    finally:
        _close(process)
    if code == SSH_FAILED or code < 0:
        raise RunFailed(f"the connection to {server.name} was lost, which ends the run there; {_resume(server, job)}")
    return code


def _resume(server: Server, job: str) -> str:
    fedge = f"{server.environment}/bin/fedge"
    return f"`sudo -u {server.user} {fedge} resume {job}/{RUN}` there goes on from the last checkpoint"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Close the run's input, which interrupts it there, and wait for its end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        return


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.poll() is None:
        process.kill()
        process.wait()


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and a terminal that closes stop the run there as Ctrl-C does; only the main thread may ask for that."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fetch(server: Server, job: str, folder: Path, left_out: Sequence[str] = OWN) -> bool:
    """Bring the run's folder here, whole or not at all; False when the run made none. Raises ``RunFailed``."""
    words = ["sh", "-c", 'test -d "$1" || exit 3; cd "$1" && shift && exec tar -cf - "$@" .', "sh", f"{job}/{RUN}"]
    command = server.command(*words, *(f"--exclude={path}" for path in left_out))
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as sent:
            broken = _unpack(sent, fresh)
            stderr = sent.stderr.read().decode("utf-8", "replace") if sent.stderr else ""
        if sent.returncode == 3:
            return False
        if sent.returncode != 0 or broken:
            raise RunFailed(f"the run's folder was not fetched: {trouble(server, sent.returncode, stderr or broken)}")
        if folder.is_dir():
            folder.rmdir()
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return True


def _unpack(sent: subprocess.Popen[bytes], fresh: Path) -> str:
    """Unpack what is sent; gives what is wrong with it."""
    try:
        with tarfile.open(fileobj=sent.stdout, mode="r|") as tar:
            tar.extractall(fresh, filter="data")
    except (tarfile.TarError, OSError) as error:
        return str(error)
    return ""
