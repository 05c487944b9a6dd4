"""A measuring program as a process: heard, given up, ended with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedge.characterisation import measurement_process
from fedge.characterisation.measurement_process import (
    Runtime,
    build_command,
    find_container_pid,
    parse_runtime,
    read_package_versions,
    run_program,
    runtime_refusal,
)
from fedge.errors import BoardError

LIMIT_S = 20.0
WITH_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print('{"pids": [%d, %d]}' % (__import__("os").getpid(), child.pid), flush=True)
time.sleep(600)
"""
STARTER = """
import sys
from fedge.characterisation.measurement_process import run_program
run_program([sys.executable, "-c", sys.argv[1]], lambda said: print(*said["pids"], flush=True))
"""


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def gone(pid: int) -> bool:
    """Whether a process has ended, within the limit."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_lines_of_json_are_heard_and_others_passed_over():
    heard: list[Mapping[str, Any]] = []
    run_program(python('print(\'a word\\n{"step": 1}\\n[2]\\n{"step": 2}\')'), heard.append)
    assert heard == [{"step": 1}, {"step": 2}]


def test_the_programs_own_reason_is_the_errors():
    with pytest.raises(BoardError, match=r"^no such folder$"):
        run_program(python('print(\'{"failed": "no such folder"}\'); raise SystemExit(1)'), lambda said: None)


def test_without_a_reason_the_last_word_on_stderr_is_told():
    with pytest.raises(BoardError, match=r"exit code 1: ZeroDivisionError: division by zero"):
        run_program(python("1 / 0"), lambda said: None)


def test_a_killed_program_may_have_run_out_of_memory():
    with pytest.raises(BoardError, match="was killed; memory may have run out"):
        run_program(python("import os; os.kill(os.getpid(), 9)"), lambda said: None)


def test_what_cannot_be_started_says_so():
    with pytest.raises(BoardError, match="cannot be started: No such file"):
        run_program(["/no/such/program"], lambda said: None)


def test_a_program_that_falls_silent_is_ended_with_its_children():
    pids: list[int] = []
    with pytest.raises(BoardError, match=r"nothing was heard of the measuring program for 0\.5 s"):
        run_program(python(WITH_A_CHILD), lambda said: pids.extend(said["pids"]), silence_s=0.5)
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_whatever_goes_wrong_here_ends_the_program_with_its_children():
    pids: list[int] = []

    def heard(said: Mapping[str, Any]) -> None:
        pids.extend(said["pids"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program(python(WITH_A_CHILD), heard)
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_ctrl_c_ends_the_program_with_its_children():
    starter = [sys.executable, "-c", STARTER, WITH_A_CHILD]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    with subprocess.Popen(starter, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as outer:
        assert outer.stdout is not None
        killer = threading.Timer(LIMIT_S, outer.kill)
        killer.start()
        pids = [int(pid) for pid in outer.stdout.readline().split()]
        outer.send_signal(signal.SIGINT)
        outer.wait(LIMIT_S)
        killer.cancel()
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


ENGINE = """#!/bin/sh
case "$1" in
  info) {info} ;;
  image) [ "$5" = here:1 ] && echo sha256:1 || {{ echo "Error: No such image: $5" >&2; exit 1; }} ;;
  inspect) echo 4711 ;;
esac
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is all of PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    for asked in (measurement_process._engine_refusal, measurement_process._image_refusal):
        asked.cache_clear()
    yield tmp_path
    for asked in (measurement_process._engine_refusal, measurement_process._image_refusal):
        asked.cache_clear()


def engine(folder: Path, name: str, info: str) -> None:
    (folder / name).write_text(ENGINE.format(info=info))
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("text", "runtime"),
    [
        ("bare", Runtime()),
        ("docker:img:tag", Runtime("docker", "img:tag")),
        ("nvidia+podman:x", Runtime("podman", "x", nvidia=True)),
    ],
)
def test_a_runtime_is_read(text, runtime):
    assert parse_runtime(text) == runtime


@pytest.mark.parametrize("text", ["", "docker", "docker:", "lxc:x", "nvidia+bare", "docker:--privileged"])
def test_what_is_no_runtime_is_refused(text):
    assert "is none of bare, docker:IMAGE" in (runtime_refusal(text) or "")


def test_an_engine_that_does_not_answer_is_refused_in_its_own_words(path):
    engine(path, "docker", 'echo "Cannot connect to the Docker daemon" >&2; exit 1')
    assert runtime_refusal("docker:here:1") == "docker does not answer: Cannot connect to the Docker daemon"


def test_an_image_that_is_not_there_is_refused_with_how_to_fetch_it(path):
    engine(path, "docker", "true")
    assert runtime_refusal("docker:here:1") is None
    assert (
        runtime_refusal("docker:gone")
        == "docker has no image gone: Error: No such image: gone; fetch it: docker pull gone"
    )


def test_a_container_gets_its_folders_no_network_and_the_same_user(path):
    spec, out = path / "work/spec.json", path / "work/out.npz"
    made = build_command(Runtime("docker", "img", nvidia=True), spec, out, [Path("/data")], "name")
    text = " ".join(made)
    assert made[:2] == ["docker", "run"]
    assert "--network none" in text
    assert f"--user {measurement_process.os.getuid()}:{measurement_process.os.getgid()}" in text
    assert "--runtime nvidia" in text
    assert "--volume /data:/data:ro" in text
    assert f"--volume {path}/work:{path}/work " in text
    assert made[-5:] == ["img", "python3", "/fedge-program/fedge/worker/epoch_profiler.py", str(spec), str(out)]


def test_without_a_container_the_program_is_run_by_its_path(path, monkeypatch):
    monkeypatch.setenv("FEDGE_WORKER_PYTHON", "/my/python")
    made = build_command(Runtime(), path / "s", path / "o", [], "name")
    assert made[0] == "/my/python"
    assert Path(made[1]).is_file()
    assert made[2:] == [str(path / "s"), str(path / "o")]


def test_a_containers_process_is_asked_of_its_engine(path):
    engine(path, "podman", "true")
    assert find_container_pid(Runtime("podman", "x"), "name") == 4711
    assert find_container_pid(Runtime(), "name") is None


def test_the_packages_are_those_of_the_python_that_points_run_with(tmp_path, monkeypatch):
    other = tmp_path / "python"
    monkeypatch.setenv("FEDGE_WORKER_PYTHON", str(other))
    with pytest.raises(BoardError, match="has no torch and Pillow"):
        read_package_versions()
    other.write_text("#!/bin/sh\necho 1.10.2 8.4.0\n")
    other.chmod(0o755)
    assert read_package_versions() == {"torch": "1.10.2", "pillow": "8.4.0"}


def test_an_engine_that_is_not_there_is_refused(path, monkeypatch):
    monkeypatch.setenv("PATH", str(path))
    assert runtime_refusal("podman:x") == "podman does not answer: No such file or directory"
