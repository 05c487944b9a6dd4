"""The wheel, built and installed: each extra in an empty environment does real work without a checkout."""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("fedge", "clients", "server", "experiments", "ansible", "setup.py", "pyproject.toml", "README.md", "LICENSE")
CORE_MB = 150
Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.xdist_group("wheel")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source archive, as somebody else would build it."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    source.mkdir()
    for path in [ROOT / name for name in SOURCES] + [*ROOT.glob("requirements.*"), *ROOT.glob("*.lock")]:
        copy = shutil.copytree if path.is_dir() else shutil.copyfile
        copy(path, source / path.name)
    (source / "ansible" / "inventory.yml").write_text("a user's own\n", encoding="utf-8")
    program = "import sys, setuptools.build_meta as b; print(b.build_sdist(sys.argv[1]))"
    _check([sys.executable, "-c", program, str(folder)], cwd=source)
    (archive,) = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    _check([*pip, str(archive)], cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


def _check(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


@pytest.mark.slow
def test_the_wheel_holds_every_file_that_the_programs_and_the_playbooks_read(wheel):
    kinds = {".py", ".yaml", ".csv", ".json", ".html", ".css", ".js"}
    programs = {
        path.relative_to(ROOT).as_posix()
        for name in ("fedge", "clients", "server", "experiments")
        for path in (ROOT / name).rglob("*")
        if path.suffix in kinds and path.is_file()
    }
    playbooks = {
        f"fedge_playbooks/{path.relative_to(ROOT / 'ansible').as_posix()}"
        for path in (ROOT / "ansible").rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.name not in {"inventory.yml", ".ansible-lint.yml"}
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        lock = archive.read("fedge_playbooks/requirements.lock")

    assert (programs | playbooks) - names == set()
    assert lock == (ROOT / "requirements.lock").read_bytes()


@pytest.mark.slow
def test_the_wheel_holds_no_inventory(wheel):
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith("/inventory.yml")]
