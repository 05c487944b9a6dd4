"""Runs an experiment on the fleet's server from another machine: send it, follow it, fetch its folder."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from experiments.fleet.server_connection import END_LIMIT_S, SSH_FAILED, ServerConnection, explain_failure
from experiments.spec.user_plugins import list_plugin_files
from fedge.child_processes import end_process, handle_signals
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment
from fedge.knowledge.evidence_files import RECORD_SUFFIX

EXPERIMENT = "experiment.yaml"
PLUGINS = "plugins"
"""Folder of the plug-ins in the tar."""


def pack_experiment(experiment: Experiment) -> bytes:
    """Pack an experiment and the local files that it names into an uncompressed tar, with paths that hold on the
    server.

    Plug-ins lie in one folder with the modules beside them that they import, under the names they are imported by.
    Data folders are not packed: they are paths on the server.
    """
    files: dict[Path, str] = {}

    def sent(text: str) -> str:
        path = Path(text)
        return files.setdefault(path, f"files/{len(files)}/{path.name}")

    record = experiment.model_dump(mode="json")
    record["plugins"] = [f"{PLUGINS}/{Path(plugin).name}" for plugin in experiment.plugins]
    if experiment.workload.task.endswith(".py"):
        record["workload"]["task"] = sent(experiment.workload.task)
    if experiment.signal is not None:
        record["signal"]["trace"] = sent(experiment.signal.trace)
    for raw, entry in zip(record["fleet"], experiment.fleet, strict=True):
        raw["references"] = [sent(path) for path in entry.references]
        if entry.device.endswith((".yaml", ".yml")):
            raw["device"] = sent(entry.device)
    contents = {EXPERIMENT: yaml.safe_dump(record, sort_keys=False).encode()}
    contents.update((name, _read(path)) for path, name in files.items())
    for module in list_plugin_files(experiment.plugins):
        for path in sorted(module.rglob("*.py")) if module.is_dir() else [module]:
            contents[f"{PLUGINS}/{path.relative_to(module.parent)}"] = _read(path)
    return _pack(contents)


def pack_tables(tables: Mapping[str, Path]) -> bytes:
    """Pack profiles and their records into an uncompressed tar, each table at its path in the tar."""
    return _pack(
        {
            name + suffix: _read(path.with_name(path.name + suffix))
            for name, path in tables.items()
            for suffix in ("", RECORD_SUFFIX)
        }
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(str(path), f"a file that cannot be read ({error.strerror})", "a file of yours") from error


def _pack(contents: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o640
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


STOP_WITHIN_S = 90.0
"""Default wait for an interrupted run to end on the server, in seconds: its clients are cancelled first."""
COPY_WITHIN_S = 120.0
"""Default limit for sending an experiment, in seconds: ample for the usual kilobytes."""
HOLDER_PROGRAM = f"""
import os, signal, subprocess, sys, threading
os.chdir(sys.argv[1])
try:
    run = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True)
except OSError as error:
    sys.exit(f"{{sys.argv[2]}} cannot be started ({{error.strerror}}): `fedge fleet provision` puts it there")
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
"""Program that runs on the server and interrupts the run as soon as its input is closed, i.e. the sender has ended."""
RECEIVER_PROGRAM = """
import os, sys, tarfile, tempfile
os.umask(0o027)
os.makedirs(sys.argv[1], exist_ok=True)
job = tempfile.mkdtemp(prefix=sys.argv[2] + "-", dir=sys.argv[1])
os.chmod(job, 0o750)  # the board service reads runs by their group
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
    tar.extractall(job, filter="data")
print(job)
"""
"""Program that unpacks the bundle into a new folder on the server and prints its path."""
RUN = "run"
"""Name of the run folder inside the job's folder."""
KNOWLEDGE = "knowledge"
"""Name of the knowledge folder among the run folders."""
IMPORT_COMMAND = ("knowledge", "import", "--knowledge")
"""Command of ``fedge`` on the server, before the knowledge folder and the tables."""
FLOWER_PATHS = ("./.flwr", "./app")
"""Flower's part of a run folder, not fetched: its state and the copy of the app."""


def send_bundle(server: ServerConnection, packed: bytes, name: str) -> str:
    """Unpack a tar of ``pack_experiment`` into a new folder on the server; return the folder's absolute path.

    ``name`` is part of the folder's name.

    Raises:
        RunFailed: If ssh cannot be started, the server refuses, or the copy takes longer than ``COPY_WITHIN_S``.
    """
    command = server.command(*server.python, RECEIVER_PROGRAM, server.runs, name)
    try:
        done = subprocess.run(command, input=packed, capture_output=True, timeout=COPY_WITHIN_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{server.name} took longer than {COPY_WITHIN_S:g} s for the experiment") from error
    except OSError as error:
        raise RunFailed(f"{command[0]} cannot be started ({error.strerror}); install openssh-client") from error
    if done.returncode != 0:
        raise RunFailed(explain_failure(server, done.returncode, done.stderr.decode("utf-8", "replace")))
    lines = done.stdout.decode("utf-8", "replace").split("\n")
    job = next((line for line in reversed(lines) if line.startswith("/")), None)
    if job is None:
        raise RunFailed(f"{server.name} does not say where it put the experiment; what it said: {lines[:3]}")
    return job


def import_tables(server: ServerConnection, tables: Mapping[str, Path]) -> str:
    """Import profiles with their records into the knowledge of the fleet's runs; return its path on the server.

    ``tables`` has each table by its path in the bundle, ``BOARD/KIND/train/WORKLOAD.csv``.

    Raises:
        RunFailed: If the server cannot be reached or refuses.
    """
    job, folder = send_bundle(server, pack_tables(tables), "profiles"), f"{server.runs}/{KNOWLEDGE}"
    fedge = [f"{server.environment}/bin/fedge", *IMPORT_COMMAND, folder]
    script = 'folder=$1; shift; "$@"; code=$?; rm -rf "$folder"; exit $code'
    program = ("sh", "-c", script, "sh", job)
    command = server.command(*program, *fedge, *(f"{job}/{name}" for name in tables))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COPY_WITHIN_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{server.name} took longer than {COPY_WITHIN_S:g} s for the import") from error
    if done.returncode != 0:
        raise RunFailed(explain_failure(server, done.returncode, done.stderr))
    return folder


def follow_run(
    server: ServerConnection,
    job: str,
    variables: Mapping[str, str],
    say: Callable[[str], None],
    *,
    quiet: bool = False,
) -> int:
    """Run a job's experiment on the server with its output on this terminal; return the exit code of ``fedge run``.

    ``say`` is called with a line when the run is being stopped; ``quiet`` leaves the run's progress out.

    Raises:
        KeyboardInterrupt: After Ctrl-C or a signal; the run on the server is interrupted and its clients are cancelled.
        RunFailed: If the connection is lost, which ends the run as well.
    """
    fedge = (f"{server.environment}/bin/fedge", *(("--quiet",) if quiet else ()))
    words = ("run", f"{job}/{EXPERIMENT}", "--folder", f"{job}/{RUN}")
    command = server.command(*server.python, HOLDER_PROGRAM, job, *fedge, *words, variables=variables)
    sys.stdout.flush()
    # A session of its own: Ctrl-C must not end ssh before the run on the server has ended.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            with handle_signals():
                code = process.wait()
        except KeyboardInterrupt:
            say(f"stopping the run on {server.name}; Ctrl-C again does not wait for it")
            _stop_run(process)
            raise
        finally:
            end_process(process, END_LIMIT_S)
    if code == SSH_FAILED or code < 0:
        raise RunFailed(
            f"the connection to {server.name} was lost, which ends the run there; {_resume_advice(server, job)}"
        )
    return code


def _resume_advice(server: ServerConnection, job: str) -> str:
    fedge = f"{server.environment}/bin/fedge"
    return f"`sudo -u {server.user} {fedge} resume {job}/{RUN}` there goes on from the last checkpoint"


def _stop_run(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the remote run by closing its input, and wait for its end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        return


def prepare_folder(folder: Path) -> None:
    """Create the parent of the local run folder and check that it is writable.

    Raises:
        BadInput: If it is not.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent).cleanup()
    except OSError as error:
        raise BadInput("--folder", f"{folder} ({error.strerror})", "a folder that you may write") from error


def fetch_folder(server: ServerConnection, job: str, folder: Path) -> bool:
    """Copy the run folder from the server, without ``FLOWER_PATHS``; it appears complete or not at all.

    Returns:
        False if the run did not create a folder.

    Raises:
        RunFailed: If the transfer fails.
    """
    words = ["sh", "-c", 'test -d "$1" || exit 3; cd "$1" && shift && exec tar -cf - "$@" .', "sh", f"{job}/{RUN}"]
    command = server.command(*words, *(f"--exclude={path}" for path in FLOWER_PATHS))
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        # Errors go to a file: a pipe that nobody reads meanwhile would stop the transfer when it is full.
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said) as sent,
        ):
            broken = _unpack(sent, fresh)
            sent.wait()
            said.seek(0)
            stderr = said.read().decode("utf-8", "replace")
        if sent.returncode == 3:
            return False
        if sent.returncode != 0 or broken:
            raise RunFailed(
                f"the run's folder was not fetched: {explain_failure(server, sent.returncode, stderr or broken)}"
            )
        if folder.is_dir():
            folder.rmdir()
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return True


def _unpack(sent: subprocess.Popen[bytes], fresh: Path) -> str:
    """Unpack the transferred tar and end the transfer; return an error message, empty on success."""
    assert sent.stdout is not None
    # Closed also where unpacking stopped half-way, so that the sender does not wait for a reader.
    with sent.stdout:
        try:
            with tarfile.open(fileobj=sent.stdout, mode="r|") as tar:
                tar.extractall(fresh, filter="data")
        except (tarfile.TarError, OSError) as error:
            return str(error)
    return ""
