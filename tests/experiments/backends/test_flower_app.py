"""What a run folder's app ships, what it refuses, and that Flower takes it."""

from __future__ import annotations

import io
import tomllib
import zipfile
from pathlib import Path

import pytest

from experiments.backends import flower_app
from fedge.errors import BadInput, RunFailed


@pytest.fixture
def packages(tmp_path: Path) -> list[Path]:
    """Two small programs with the litter that a checkout collects."""
    root = tmp_path / "some checkout"
    for name in ("clients", "server"):
        for file in ("__init__.py", "app.py", "deep/er/part.py", "deep/presets.yaml", "notes.txt", "table.csv"):
            _write(root / name / file, "app = 1\n")
        for litter in (
            "tests/test_app.py",
            "test_here.py",
            "here_test.py",
            "conftest.py",
            "__pycache__/app.pyc",
            ".cache/x.py",
        ):
            _write(root / name / litter, "raise SystemExit\n")
    return [root / "clients", root / "server"]


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_app_holds_code_and_presets_but_no_tests_caches_or_tables(tmp_path, packages):
    app = flower_app.stage_app(tmp_path / "a run", packages=packages)
    shipped = {"__init__.py", "app.py", "deep/er/part.py", "deep/presets.yaml"}
    assert app == tmp_path / "a run" / "app"
    assert _names(app) == {f"{name}/{file}" for name in ("clients", "server") for file in shipped} | {"pyproject.toml"}


def test_the_project_file_names_both_apps_and_every_key_of_the_run_config(tmp_path, packages):
    defaults = {
        "experiment": 'a "quoted" \\ line\nwith a tab\t, DEL \x7f and 温度 😀',
        "rounds": 3,
        "share": 0.5,
        "dry": True,
    }
    app = flower_app.stage_app(tmp_path, packages=packages, config=defaults)
    project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "server.app:app",
        "clientapp": "clients.app:app",
    }
    assert project["tool"]["flwr"]["app"]["config"] == defaults
    assert project["project"]["dependencies"] == []


def test_plugins_ship_beside_the_programs_under_their_own_names(tmp_path, packages):
    module = _write(tmp_path / "my things" / "night_policy.py", "RATE = 2\n")
    _write(tmp_path / "my things" / "fancy" / "__init__.py", "")
    _write(tmp_path / "my things" / "fancy" / "data.bin", "")
    app = flower_app.stage_app(tmp_path, [module, tmp_path / "my things" / "fancy"], packages=packages)
    assert (app / "night_policy.py").read_text() == "RATE = 2\n"
    assert _names(app / "fancy") == {"__init__.py"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("server.py", "another module of the app has"),
        ("lib.py", "leaves out"),
        ("test_policy.py", "leaves out"),
        ("my-policy.py", "cannot import"),
        ("random.py", "hide an installed module"),
        ("numpy.py", "hide an installed module"),
    ],
)
def test_a_plugin_whose_name_would_not_work_on_the_boards_is_refused(tmp_path, packages, name, why):
    plugin = _write(tmp_path / "plugins" / name, "")
    with pytest.raises(BadInput, match=why):
        flower_app.stage_app(tmp_path, [plugin], packages=packages)


def test_the_programs_come_from_beside_the_launcher_and_never_from_the_current_folder(tmp_path, monkeypatch):
    _write(tmp_path / "clients" / "__init__.py", "raise SystemExit('poison')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    root = Path(flower_app.__file__).resolve().parents[2]
    assert flower_app.installed_packages() == tuple(root / name for name in ("fedge", "clients", "server"))


def test_a_program_that_is_not_installed_is_named():
    with pytest.raises(RunFailed, match="no_such_program"):
        flower_app.installed_packages(["no_such_program"])


def test_flower_bundles_everything_of_the_installed_app_that_was_staged(tmp_path):
    build = pytest.importorskip("flwr.cli.build", reason="needs Flower's bundler")
    app = flower_app.stage_app(tmp_path)
    bundle = build.build_fab_from_disk(app)
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        inside = {name for name in archive.namelist() if not name.startswith(".info")}
    assert inside == _names(app)
    assert {"fedge/types.py", "clients/app.py", "server/app.py"} <= inside
    assert len(bundle) < 10 * 1024 * 1024
