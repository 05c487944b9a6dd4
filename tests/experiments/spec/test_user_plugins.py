"""The user's plug-ins: their neighbours, names that fedge has too, and results that a round cannot use."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedge
from experiments.spec import user_plugins
from experiments.spec.experiment_checks import check_experiment
from experiments.spec.experiment_loader import load_experiment
from experiments.spec.user_plugins import list_plugin_files
from fedge.errors import BadInput
from fedge.import_path import ROOT

EXPERIMENT = """\
name: mine
rounds: 1
fleet: [{device: orin-nano, count: 2}]
workload: {task: digits-cnn, cost: resnet18-imagenet}
policy: "my_policy:choose"
plugins: [my_policy.py]
"""
FILES = {
    "exp.yaml": EXPERIMENT,
    "my_policy.py": "from my_tools import lowest\n\n\ndef choose(*given):\n    return lowest(*given)\n",
    "my_tools.py": (
        "from fedge.types import Decision\n\n\ndef lowest(predictions, offer, goal, spec):\n"
        "    from my_names import WHY\n\n    return Decision(predictions.modes[predictions.power_w.argmin()], WHY)\n"
    ),
    "my_names.py": "WHY = 'least power'\n",
    "unrelated.py": "raise SystemExit('nobody imports this')\n",
    "server.py": "raise SystemExit('the user serves pages')\n",
    "clients.py": "raise SystemExit('the user has clients')\n",
    "experiments/notes.txt": "a folder named like a package of fedge\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def start(folder: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """The fedge command in a process of its own, whose working directory is the user's folder."""
    command = "import sys; from experiments.cli.main import main; sys.argv[0] = 'fedge'; main()"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, str(ROOT))))}
    arguments = [sys.executable, "-P", "-c", command, "--quiet", *words]
    return subprocess.run(arguments, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_what_a_plugin_imports_belongs_to_it(folder):
    assert [path.name for path in list_plugin_files([str(folder / "my_policy.py")])] == [
        "my_policy.py",
        "my_tools.py",
        "my_names.py",
    ]


def test_a_package_beside_a_plugin_belongs_to_it_with_what_it_imports(tmp_path):
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "deep.py").write_text("import far\nfrom . import near\n", encoding="utf-8")
    (tmp_path / "far.py").touch()
    (tmp_path / "plug.py").write_text("import kit.deep, numpy, json\n", encoding="utf-8")
    assert [path.name for path in list_plugin_files([str(tmp_path / "plug.py")])] == ["plug.py", "kit", "far.py"]


def test_fedge_itself_is_no_neighbour_of_a_plugin_in_the_root_of_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(user_plugins, "OWN_PACKAGES", {tmp_path / path.name for path in user_plugins.OWN_PACKAGES})
    for name in ("fedge", "experiments", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "plug.py").write_text(
        "import experiments.api, tests\nfrom fedge.types import Front\n", encoding="utf-8"
    )
    assert [path.name for path in list_plugin_files([str(tmp_path / "plug.py")])] == ["plug.py", "tests"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("local", "--jobs", "2"), pytest.param(("sim",), marks=pytest.mark.long)], ids=" ".join
)
def test_a_plugin_and_its_neighbours_run_beside_files_named_like_fedges(folder, options):
    done = start(folder, "run", "exp.yaml", "--folder", "run", "--backend", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "run" / "summary.json").is_file()


@pytest.mark.slow
def test_files_named_like_fedges_at_the_head_of_the_path_are_left_aside(folder):
    done = start(folder, "run", "exp.yaml", "--folder", "run", "--backend", "local", "--jobs", "2", path=".")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("neighbour", ["server", "numpy"])
@pytest.mark.slow
def test_a_neighbour_with_the_name_of_another_module_is_refused_before_the_run(folder, neighbour):
    (folder / f"{neighbour}.py").touch()
    (folder / "my_names.py").write_text(f"import {neighbour}\nWHY = ''\n", encoding="utf-8")
    done = start(folder, "run", "exp.yaml", "--folder", "run", "--backend", "sim")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"{neighbour}.py" in done.stderr
    assert not (folder / "run").exists()


@pytest.fixture
def clean_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's modules and their folder are forgotten after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("my_policy", "my_tools", "my_names"):
        sys.modules.pop(name, None)


def refuse(folder: Path, *overrides: str) -> str:
    """The message of the checks before a run."""
    with pytest.raises(BadInput) as refused:
        check_experiment(load_experiment(folder / "exp.yaml", overrides))
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


@pytest.mark.usefixtures("clean_modules")
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return None", "returned None"),
        ("return predictions.modes[0]", "of type PowerMode"),
        ("return Decision(spec.maxn.cores, '')", "(int)"),
        ("return Decision(type(spec.maxn)(1, 2.0, 3.0, 4.0), '')", "predictions.modes"),
        ("return predictions.mode[0]", "(my_tools.py, line 5)"),
        ("import numpy; numpy.linalg.inv(numpy.zeros((2, 2)))", "(my_tools.py, line 5)"),
    ],
)
def test_a_policy_that_returns_the_wrong_thing_is_one_line_before_the_run(folder, body, named):
    text = f"from fedge.types import Decision\n\n\ndef lowest(predictions, offer, goal, spec):\n    {body}\n"
    (folder / "my_tools.py").write_text(text, encoding="utf-8")
    message = refuse(folder)
    assert named in message
    assert "my_policy:choose" in message


@pytest.mark.usefixtures("clean_modules")
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return [client.board for client in clients]", "fedge.types.SelectionResult"),
        ("return SelectionResult(tuple(clients))", "client.board"),
        ("return SelectionResult(('nobody',))", "'nobody'"),
    ],
)
def test_a_selector_that_returns_the_wrong_thing_is_one_line_before_the_run(folder, body, named):
    text = f"\n\ndef select(clients, call, rng):\n    from fedge.types import SelectionResult\n\n    {body}\n"
    (folder / "my_tools.py").write_text(FILES["my_tools.py"] + text, encoding="utf-8")
    assert named in refuse(folder, "selection.name=my_tools:select")


@pytest.mark.usefixtures("clean_modules")
def test_a_plugin_that_changed_between_two_runs_of_a_notebook_is_read_again(folder):
    experiment = load_experiment(folder / "exp.yaml")
    check_experiment(experiment)
    (folder / "my_tools.py").write_text("def lowest(*given):\n    return 'changed'\n", encoding="utf-8")
    assert "'changed'" in refuse(folder)


@pytest.mark.usefixtures("clean_modules")
def test_the_trial_of_a_selector_leaves_the_state_of_its_module(folder):
    text = (
        "calls = []\n\n\ndef select(clients, call, rng):\n    from fedge.types import SelectionResult\n\n"
        "    calls.append(call.round)\n    return SelectionResult((clients[0].board,))\n"
    )
    (folder / "my_tools.py").write_text(FILES["my_tools.py"] + text, encoding="utf-8")
    check_experiment(load_experiment(folder / "exp.yaml", ["selection.name=my_tools:select"]))
    assert sys.modules["my_tools"].calls == []


@pytest.mark.usefixtures("clean_modules")
def test_a_policy_knows_its_own_numbers_and_the_rounds_that_are_left(folder):
    text = (
        "from fedge.types import Decision\n\n\ndef choose(predictions, offer, goal, spec):\n"
        "    return Decision(predictions.modes[0], f'{goal.rounds_left} left, {goal.limits[\"least\"]}')\n"
    )
    (folder / "my_policy.py").write_text(text, encoding="utf-8")
    options = {
        "policy": {"name": "my_policy:choose", "options": {"least": 0.4}},
        "rounds": 3,
        "workload": {"task": "none"},
    }
    run = fedge.run(folder / "exp.yaml", folder=folder / "run", backend="local", quiet=True, **options)
    rows = run.query("select distinct round, why from clients order by round", arrow=True).to_pylist()
    assert [row["why"] for row in rows] == ["2 left, 0.4", "1 left, 0.4", "0 left, 0.4"]


@pytest.mark.usefixtures("clean_modules")
@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ('{name: "my_policy:choose", options: {least: .nan}}', r"policy\.options\.least: got nan; a finite"),
        ("{name: balanced, options: {least: 0.4}}", r"policy\.options\.least: got 0.4; no options"),
        (
            '{name: "my_policy:choose", options: {deadline_s: 9}}',
            r"policy\.options\.deadline_s: got 9; policy.deadline_s",
        ),
    ],
)
def test_options_are_numbers_of_ones_own_policy_alone(folder, policy, complaint):
    assert re.search(complaint, refuse(folder, f"policy={policy}"))
