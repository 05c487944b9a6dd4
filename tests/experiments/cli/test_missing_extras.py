"""The commands where only the core is installed: what needs more says in one line what."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contracts.launching import Outcome

PROGRAM = """
import json, os, sys, traceback
from fedge.extras import LIBRARIES
sys.modules.update(dict.fromkeys(LIBRARIES))
import fedge
from experiments.cli.main import main

def run(folder, words, call):
    os.chdir(folder)
    for number, name in enumerate((os.devnull, folder + ".out", folder + ".err")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    try:
        if call:
            exec("fedge." + call)
        else:
            sys.argv = ["fedge", *words]
            main()
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os._exit(run(**json.loads(line)))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""``fedge`` without the libraries of all extras: a name that is None in ``sys.modules`` cannot be imported.

Each command is a process of its own, forked from one that has imported the core.
"""

SWEEP = "{experiment: exp.yaml, grid: {policy: [maxn, balanced]}}\n"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def core() -> Iterator[Callable[..., Outcome]]:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as server:

        def run(folder: Path, *words: str, call: str = "") -> Outcome:
            assert server.stdin is not None
            assert server.stdout is not None
            print(json.dumps({"folder": str(folder), "words": words, "call": call}), file=server.stdin)
            code = int(server.stdout.readline())
            return Outcome(code, Path(f"{folder}.out").read_text(), Path(f"{folder}.err").read_text())

        yield run


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
def test_the_core_predicts_and_chooses(command, core, tmp_path):
    done = core(tmp_path, *command.split())

    assert done.code == 0, done.err


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
def test_a_command_names_the_extras_that_it_lacks_in_one_line(name, rest, extras, core, tmp_path):
    done = core(tmp_path, "--quiet", *name.split(), *rest.split())

    assert done.code == 2
    assert done.message.startswith(f"fedge {name} needs ")
    assert done.message.endswith(f": pip install 'fedge[{extras}]'")
    assert not list(tmp_path.iterdir())


def test_doctor_names_the_extra_of_a_backend(core, tmp_path):
    done = core(tmp_path, "doctor", "--json")

    remedies = {finding["what"]: finding["remedy"] for finding in json.loads(done.out)}
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
def test_a_function_in_python_names_the_extras_that_it_lacks(call, extras, core, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    (tmp_path / "exp.yaml").write_text("{fleet: [nano], backend: local}\n", encoding="utf-8")

    done = core(tmp_path, call=call)

    wanted = (
        f"fedge.extras.MissingPackage: fedge[ .]{call.partition('(')[0]} needs .*: pip install 'fedge\\[{extras}\\]'"
    )
    assert re.fullmatch(wanted, done.err.splitlines()[-1]) if extras else done.code == 0, done.err
