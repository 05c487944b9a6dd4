"""The commands where only the core is installed: what needs more says in one line what."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from fedge.extras import LIBRARIES
sys.modules.update(dict.fromkeys(LIBRARIES))
from experiments.cli.main import main
sys.argv[0] = "fedge"
main()
"""
"""``fedge`` without the libraries of all extras: a name that is None in ``sys.modules`` cannot be imported."""

SWEEP = "{experiment: exp.yaml, grid: {policy: [maxn, balanced]}}\n"

pytestmark = pytest.mark.slow


def run_core(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command",
    [
        "devices show agx-orin",
        "select-board --workload resnet18-imagenet",
        "knowledge list",
        "reproduce accelerators",
        (
            "concurrent plan --board agx-orin --train-workload resnet18-imagenet --infer-workload mobilenetv3l-gld23k "
            "--max-power-w 40 --max-latency-s 1 --rate-hz 30"
        ),
    ],
)
def test_the_core_predicts_and_chooses(command, tmp_path):
    done = run_core(tmp_path, *command.split())

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "rest", "extras"),
    [
        ("run", "quickstart", "sim,train"),
        ("run", "quickstart --set workload.task=none", "sim"),
        ("replay", "runs", "sim"),
        ("study fleet", "quickstart", "sim"),
        ("board", "runs", "report"),
        ("layers", "resnet18", "train"),
        ("fleet keys", "--folder keys", "fleet"),
    ],
)
def test_a_command_names_the_extras_that_it_lacks_in_one_line(name, rest, extras, tmp_path):
    done = run_core(tmp_path, "--quiet", *name.split(), *rest.split())

    assert done.returncode == 2
    assert done.stderr.startswith(f"fedge {name} needs ")
    assert done.stderr.endswith(f": pip install 'fedge[{extras}]'\n")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_doctor_names_the_extra_of_a_backend(tmp_path):
    done = run_core(tmp_path, "doctor", "--json")

    remedies = {finding["what"]: finding["remedy"] for finding in json.loads(done.stdout)}
    assert remedies["backend local"] == remedies["backend fleet"] == "pip install 'fedge[sim]'"


@pytest.mark.parametrize(
    ("call", "extras"),
    [
        ("run('quickstart')", "sim,train"),
        ("runs()", ""),
        ("boards()", ""),
        ("sweep('sweep.yaml')", "sim,train"),
        ("memory('resnet18', 'tx2')", "train"),
    ],
)
def test_a_function_in_python_names_the_extras_that_it_lacks(call, extras, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    (tmp_path / "exp.yaml").write_text("{fleet: [nano], backend: local}\n", encoding="utf-8")
    program = PROGRAM.partition("from experiments")[0] + f"import fedge\nfedge.{call}\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)

    wanted = (
        f"fedge.extras.MissingPackage: fedge[ .]{call.partition('(')[0]} needs .*: pip install 'fedge\\[{extras}\\]'"
    )
    assert re.fullmatch(wanted, done.stderr.splitlines()[-1]) if extras else done.returncode == 0, done.stderr
