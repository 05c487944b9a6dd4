"""fedge for Python: runs, their tables and figures, comparisons, and the functions that stand for commands."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from contracts.launching import run_here

import fedge
from fedge.errors import BadInput, UnknownName
from fedge.import_path import ROOT
from fedge.types import Modes, Predictions

SCRIPT = """
import fedge

run = fedge.run(
    {"fleet": [{"device": "orin-nano", "count": 2}], "workload": {"task": "digits-cnn", "cost": "resnet18-imagenet"}},
    backend="local", jobs=2, rounds=1, policy__name="maxn", name="mine", tags=["first"], quiet=True,
)
print(run.state, run.folder.name, run.experiment.policy.name, *run.experiment.tags)
"""


def start(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """A script of the user's, in a folder that has modules named like fedge's own packages."""
    (folder / "script.py").write_text(program, encoding="utf-8")
    for name in ("server.py", "clients.py"):
        (folder / name).write_text("raise SystemExit('a module of the user')\n", encoding="utf-8")
    (folder / "experiments").mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_importing_fedge_imports_nothing_else():
    program = "import sys; before = set(sys.modules); import fedge; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["fedge"]


def test_every_name_can_be_used_and_is_known_to_type_checkers():
    stub = ast.parse((ROOT / "fedge" / "__init__.pyi").read_text(encoding="utf-8"))
    typed = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == set(fedge.__all__)
    assert all(callable(getattr(fedge, name)) for name in fedge.__all__)
    assert set(fedge.__all__) <= set(dir(fedge))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = fedge.nonsense


def test_a_run_s_rows_are_pandas_and_arrow(make_run):
    run = fedge.load(make_run())
    pandas = pytest.importorskip("pandas")
    for read in (run.rounds, run.clients, run.evaluations, run.events, run.samples):
        assert isinstance(read(), pandas.DataFrame)
        assert isinstance(read(arrow=True), pa.Table)
    assert len(run.query("select round from rounds")) == len(run.rounds())
    assert run.rounds()["energy_j"].sum() == pytest.approx(run.summary["energy_j"])


def test_every_chart_of_the_report_is_a_figure_by_its_name(make_run):
    run = fedge.load(make_run())
    assert "timeline" in run.figures
    for name in run.figures:
        assert run.figure(name).layout.title.text
    with pytest.raises(UnknownName, match="timeline"):
        run.figure("time-line")


def test_a_run_writes_its_report(make_run, tmp_path):
    assert fedge.load(make_run()).report(tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype")


def test_a_comparison_has_the_tables_and_figures_of_its_page(make_run, tmp_path):
    runs = [fedge.load(make_run(policy, policy=policy)) for policy in ("balanced", "maxn")]
    comparison = fedge.compare(runs)
    assert list(comparison.table()["run"]) == ["balanced", "maxn"]
    assert comparison.figure(comparison.figures[0]).data
    assert comparison.report(tmp_path / "both.html").is_file()
    with pytest.raises(UnknownName, match="runs"):
        comparison.table("nothing")


def test_predictions_and_records_become_tables():
    import numpy as np

    column = np.array([1.0, 2.0])
    modes = Modes(np.array([[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]]))
    predictions = Predictions(modes, step_s=column, power_w=column, step_s_sd_log=column, power_w_sd_log=column)
    table = fedge.to_table(predictions, arrow=True)
    assert table.column("gpu_mhz").to_pylist() == [3.0, 4.0]
    assert table.column("energy_j").to_pylist() == [1.0, 4.0]
    assert fedge.to_table([{"a": 1, "b": [1, 2], "c": {"d": 3}}], arrow=True).to_pylist() == [
        {"a": 1, "b": "1, 2", "c": "d 3"}
    ]
    assert fedge.to_table(fedge.doctor(), arrow=True).num_rows == len(fedge.doctor())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"polcy": "maxn"}, "polcy: got an unknown key"),
        ({"policy__power_w": -3}, "policy.power_w: got -3"),
        ({"fleet__7__count": 1}, "fleet.7: got '7'"),
        ({"policy": "quickest"}, "experiment: policy.name: got 'quickest'"),
        ({"rounds": object()}, "experiment: got <object"),
        ({"name": "a/b"}, "--name: got 'a/b'"),
    ],
)
def test_a_wrong_override_is_one_line_that_names_it(override, message):
    with pytest.raises(BadInput) as refused:
        fedge.run({"fleet": ["nano"]}, backend="local", **override)
    assert str(refused.value).startswith(message)


def test_options_that_an_override_drops_are_told(capsys):
    given = {"fleet": ["nano"], "policy": {"name": "least-energy", "max_slowdown": 1.2}}
    with pytest.raises(BadInput, match="--name"):
        fedge.run(given, policy__name="maxn", backend="local", name="a/b")
    assert "max_slowdown" in capsys.readouterr().err


@pytest.mark.parametrize(
    "call",
    [
        lambda: fedge.roofline("resnet50", "tx2", btach=3),
        lambda: fedge.predict(board="tx2", workload="resnet18-imagenet", btach=3),
        lambda: fedge.place("resnet50", "tx2", btach=3),
        lambda: fedge.select_board("resnet50", btach=3),
        lambda: fedge.plan_concurrent(20, btach=3),
        lambda: fedge.topology("resnet50", "tx2", btach=3),
    ],
)
def test_an_unknown_option_lists_the_known_ones(call):
    with pytest.raises(BadInput, match=r"got 'btach'; known: .*(board|workload)"):
        call()


@pytest.mark.slow
def test_a_script_without_a_main_guard_runs_beside_modules_named_like_fedges(tmp_path):
    done = start(tmp_path, SCRIPT)
    assert (done.stdout, done.stderr) == ("finished mine maxn first\n", "")


@pytest.mark.slow
def test_a_module_of_the_user_s_that_is_in_use_already_is_named(tmp_path):
    done = start(tmp_path, "import sys, types\nsys.modules['server'] = types.ModuleType('server')\n" + SCRIPT)
    assert done.stderr.splitlines()[-1].startswith("fedge.errors.BadInput: import fedge: got a module 'server'")


def test_a_run_in_python_has_the_rows_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "rounds: 2\nfleet: [orin-nano, agx-orin]\nworkload: {task: digits-cnn, cost: resnet18-imagenet}\n"
    (tmp_path / "exp.yaml").write_text(text, encoding="utf-8")
    assert run_here(monkeypatch, "run", "exp.yaml", "--backend", "local", "--folder", "theirs") == 0
    ours = fedge.run("exp.yaml", backend="local", folder="ours", quiet=True)
    for table in ("rounds", "clients"):
        mine, other = (getattr(run, table)(arrow=True) for run in (ours, fedge.load("theirs")))
        assert mine.num_rows > 0
        assert mine.equals(other)


def test_an_unknown_option_names_the_function_and_the_option_that_may_be_meant():
    with pytest.raises(UnknownName, match=r"^fedge\.roofline: got 'batchsize'; did you mean batch_size\? known: "):
        fedge.roofline("resnet18", "orin-nano", batchsize=3)
