"""A measuring program as a process: heard, given up, ended with all that it started."""

import sys
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


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (python('print(\'{"failed": "no such folder"}\'); raise SystemExit(1)'), r"^no such folder$"),
        (python("1 / 0"), "exit code 1: ZeroDivisionError: division by zero"),
        (python("import os; os.kill(os.getpid(), 9)"), "was killed; memory may have run out"),
        (["/no/such/program"], "cannot be started: No such file"),
    ],
    ids=["its own reason", "last word on stderr", "killed", "absent"],
)
def test_a_program_that_fails_is_told_by_its_reason(command, told):
    with pytest.raises(BoardError, match=told):
        run_program(command, lambda said: None)


def test_a_program_that_falls_silent_is_ended_with_its_children():
    pids: list[int] = []
    with pytest.raises(BoardError, match=r"nothing was heard of the measuring program for 2 s"):
        run_program(python(WITH_A_CHILD), lambda said: pids.extend(said["pids"]), silence_s=2.0)
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


ENGINE = """#!/bin/sh
case "$1" in
  info) {info} ;;
  image) [ "$5" = here:1 ] && echo sha256:1 || {{ echo "Error: No such image: $5" >&2; exit 1; }} ;;
  inspect) echo 4711 ;;
esac
"""


def forget_engines() -> None:
    measurement_process._engine_refusal.cache_clear()
    measurement_process._image_refusal.cache_clear()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is all of PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    forget_engines()
    yield tmp_path
    forget_engines()


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


def test_engines_that_do_not_answer_and_images_that_are_not_there_are_refused_in_their_words(path, monkeypatch):
    monkeypatch.setenv("PATH", str(path))
    assert runtime_refusal("podman:x") == "podman does not answer: No such file or directory"
    forget_engines()
    engine(path, "podman", 'echo "Cannot connect to the daemon" >&2; exit 1')
    assert runtime_refusal("podman:here:1") == "podman does not answer: Cannot connect to the daemon"
    engine(path, "docker", "true")
    assert runtime_refusal("docker:here:1") is None
    words = "docker has no image gone: Error: No such image: gone; fetch it: docker pull gone"
    assert runtime_refusal("docker:gone") == words


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
