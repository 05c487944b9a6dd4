"""Bare or in a container: the command, and what an engine says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedge.characterisation import measurement_process
from fedge.characterisation.measurement_process import (
    Runtime,
    build_command,
    find_container_pid,
    parse_runtime,
    read_package_versions,
    runtime_refusal,
)
from fedge.errors import BoardError

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
def test_a_runtime_is_read(text: str, runtime: Runtime) -> None:
    assert parse_runtime(text) == runtime


@pytest.mark.parametrize("text", ["", "docker", "docker:", "lxc:x", "nvidia+bare", "docker:--privileged"])
def test_what_is_no_runtime_is_refused(text: str) -> None:
    assert "is none of bare, docker:IMAGE" in (runtime_refusal(text) or "")


def test_an_engine_that_does_not_answer_is_refused_in_its_own_words(path: Path) -> None:
    engine(path, "docker", 'echo "Cannot connect to the Docker daemon" >&2; exit 1')
    assert runtime_refusal("docker:here:1") == "docker does not answer: Cannot connect to the Docker daemon"


def test_an_engine_that_is_not_there_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(path))
    assert runtime_refusal("podman:x") == "podman does not answer: No such file or directory"


def test_an_image_that_is_not_there_is_refused_with_how_to_fetch_it(path: Path) -> None:
    engine(path, "docker", "true")
    assert runtime_refusal("docker:here:1") is None
    assert (
        runtime_refusal("docker:gone")
        == "docker has no image gone: Error: No such image: gone; fetch it: docker pull gone"
    )


def test_a_container_gets_its_folders_no_network_and_the_same_user(path: Path) -> None:
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


def test_without_a_container_the_program_is_run_by_its_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGE_WORKER_PYTHON", "/my/python")
    made = build_command(Runtime(), path / "s", path / "o", [], "name")
    assert made[0] == "/my/python"
    assert Path(made[1]).is_file()
    assert made[2:] == [str(path / "s"), str(path / "o")]


def test_a_containers_process_is_asked_of_its_engine(path: Path) -> None:
    engine(path, "podman", "true")
    assert find_container_pid(Runtime("podman", "x"), "name") == 4711
    assert find_container_pid(Runtime(), "name") is None


def test_the_packages_are_those_of_the_python_that_points_run_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python"
    monkeypatch.setenv("FEDGE_WORKER_PYTHON", str(other))
    with pytest.raises(BoardError, match="has no torch and Pillow"):
        read_package_versions()
    other.write_text("#!/bin/sh\necho 1.10.2 8.4.0\n")
    other.chmod(0o755)
    assert read_package_versions() == {"torch": "1.10.2", "pillow": "8.4.0"}
