"""One experiment, two backends, the same rows; real Flower, Ray and sockets."""

import importlib.util
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from contracts.free_tasks import CHARACTERS, LANGUAGE_MODEL, write_texts
from contracts.launching import FEDGE, run_here

from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EvaluationRow, EventRow, RoundRow, SampleRow

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulations")]
ROUNDS, MODELS = 2, 3
QUICK = ["--set", f"rounds={ROUNDS}", "--set", "workload.local_epochs=1"]
FEDBUFF = (
    f"rounds={MODELS}",
    "strategy.name=FedBuff",
    "strategy.options.buffer_size=2",
    "strategy.options.concurrency=5",
)
BESIDE = (
    "fleet.3.serving={cost: resnet50-imagenet, rate_hz: 60, latency_s: 0.8}",
    "fleet.0.memory_mb=1800",
    "workload.memory.lower=width-first",
    "workload.memory.margin=0.05",
)
PRIVATE = (
    "strategy.name=DifferentialPrivacyClientSideAdaptiveClipping",
    "strategy.options={noise_multiplier: 0.05, num_sampled_clients: 8, initial_clipping_norm: 1.0}",
    "strategy.wraps.name=FedAvg",
    "mods=[adaptiveclipping_mod, LocalDpMod]",
    "mods.1.options={clipping_norm: 2.0, sensitivity: 0.0001, epsilon: 10, delta: 0.00001}",
    "evaluation={by: both, fraction: 0.6}",
)
JOINT = (
    "policy=joint",
    "signal=example-signal.csv",
    *(f"fleet.{entry}.zone={zone}" for entry, zone in enumerate(("north", "north", "south", "south"))),
    "selection={name: fedzero-like, count: 6, options: {threshold: 1.2}}",
    "fleet.3.battery={capacity_wh: 1, charge: 0.8, charging_w: 12}",
    "compression.kind=topk",
    "fleet.0.memory_mb=1800",
    "workload.memory.lower=width-first",
    "workload.memory.margin=0.05",
)
NARROW = ("policy=joint", "workload.memory.widths=[1, 0.5]")
KINDS: dict[str, tuple[str, ...]] = {
    "rounds": tuple(part for option in BESIDE for part in ("--set", option)),
    "private": tuple(part for option in PRIVATE for part in ("--set", option)),
    "asynchronous": tuple(part for option in FEDBUFF for part in ("--set", option)),
}
"""What differs from ``QUICK`` in the runs that are held against each other."""
LONG_KINDS = {
    "joint": tuple(part for option in JOINT for part in ("--set", option)),
    "narrow": tuple(part for option in NARROW for part in ("--set", option)),
}


def words(root: Path, backend: str, out: Path, *more: str) -> list[str]:
    config = f"{root}/experiments/configs/quickstart.yaml"
    return ["run", config, "--backend", backend, "--folder", str(out), *QUICK, *more]


def simulate(root: Path, out: Path, cwd: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}
    command = [*FEDGE, *words(root, "sim", out, *more)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def rows(folder: Path) -> list:
    return [
        row for kind in (RoundRow, ClientRow, EvaluationRow, EventRow, SampleRow) for row in read_rows(folder, kind)
    ]


@dataclass(frozen=True, slots=True)
class Played:
    """One experiment on both backends; the sim run went on beside another one."""

    local: Path
    sim: Path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, project_root: Path) -> dict[str, Played]:
    """Every kind of run on both backends, beside a folder called clients.

    In ``rounds`` two boards serve, two have little memory, and all recall what an earlier run measured.
    """
    folder = tmp_path_factory.mktemp("backends")
    poisoned = folder / "elsewhere"
    (poisoned / "clients").mkdir(parents=True)
    (poisoned / "clients" / "__init__.py").write_text("raise SystemExit('the wrong clients')\n")
    (poisoned / "clients" / "app.py").write_text("raise SystemExit('the wrong app')\n")
    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        assert run_here(patch, *words(project_root, "local", folder / "earlier", *KINDS["rounds"])) == 0
        kinds = KINDS | {"rounds": (*KINDS["rounds"], "--set", f"knowledge={folder / 'earlier'}")}
        return play(pool, patch, project_root, poisoned, kinds)


@pytest.fixture(scope="module")
def played_joint(tmp_path_factory: pytest.TempPathFactory, project_root: Path) -> dict[str, Played]:
    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        return play(pool, patch, project_root, tmp_path_factory.mktemp("joint") / "cwd", LONG_KINDS)


def play(
    pool: ThreadPoolExecutor, patch: pytest.MonkeyPatch, root: Path, cwd: Path, kinds: dict[str, tuple[str, ...]]
) -> dict[str, Played]:
    """Play every kind on both backends; the simulations side by side, from the folder ``cwd``."""
    cwd.mkdir(exist_ok=True)
    runs = {name: Played(cwd.parent / f"{name} local", cwd.parent / f"a {name} sim run") for name in kinds}
    simulated = [pool.submit(simulate, root, runs[name].sim, cwd, *more) for name, more in kinds.items()]
    for name, more in kinds.items():
        assert run_here(patch, *words(root, "local", runs[name].local, *more)) == 0
    for run in simulated:
        assert run.result().returncode == 0, run.result().stdout + run.result().stderr
    return runs


@pytest.mark.parametrize("name", KINDS)
def test_local_and_sim_write_the_same_rows_and_model_also_with_two_runs_at_once(played, name):
    check_same(played[name])


def check_same(played: Played) -> None:
    local, sim = played.local, played.sim
    assert rows(local) == rows(sim)
    for written in ("run.yaml", "summary.json", "model.safetensors", "report.html"):
        assert (sim / written).stat().st_size > 0
    labels = [json.loads((folder / "summary.json").read_text(encoding="utf-8"))["labels"] for folder in (local, sim)]
    assert labels[0] == labels[1]
    assert (local / "model.safetensors").read_bytes() == (sim / "model.safetensors").read_bytes()


def test_boards_that_serve_tell_of_it_and_the_others_do_not(played):
    assert {row.step_share for row in read_rows(played["rounds"].sim, ClientRow) if row.error is None} == {1.0}
    serving = {row.board for row in read_rows(played["rounds"].sim, ClientRow) if row.requests}
    assert serving == {"agx-orin-64gb-1", "agx-orin-64gb-2"}


def test_boards_with_little_memory_train_a_narrower_network_and_the_others_do_not(played):
    narrow = {row.device for row in read_rows(played["rounds"].sim, ClientRow) if (row.width or 1.0) < 1.0}
    assert narrow == {"nano"}


def test_mods_change_what_boards_send_and_boards_evaluate_the_model(played):
    plain, private = (read_rows(played[name].sim, RoundRow) for name in ("rounds", "private"))
    assert plain[-1].loss != private[-1].loss
    assert len(read_rows(played["private"].sim, EvaluationRow)) == ROUNDS * 5
    assert None not in [row.client_accuracy for row in private]


@pytest.mark.long
def test_a_joint_run_is_the_same_on_both_and_records_the_work_that_each_board_was_asked_for(played_joint):
    check_same(played_joint["joint"])
    clients = [row for row in read_rows(played_joint["joint"].sim, ClientRow) if row.error is None]
    assert len({row.step_share for row in clients}) > 1
    assert {row.encoding for row in clients} == {"topk"}


@pytest.mark.long
def test_a_joint_run_asks_slow_boards_for_narrow_networks_which_send_less(played_joint):
    check_same(played_joint["narrow"])
    clients = [row for row in read_rows(played_joint["narrow"].sim, ClientRow) if row.error is None]
    narrow = [row for row in clients if row.width == 0.5]
    assert {row.device for row in narrow} >= {"nano"}
    least_mb = {width: min(row.moved_mb for row in clients if row.width == width) for width in (0.5, 1.0)}
    assert least_mb[0.5] < least_mb[1.0]
    assert any("with 0.5 of their channels" in row.message for row in read_rows(played_joint["narrow"].sim, EventRow))


def test_every_board_of_every_round_has_a_row_and_a_trace_and_every_model_a_row(played):
    clients = read_rows(played["rounds"].sim, ClientRow)
    left_out = {row.board for row in clients if row.left_out}
    assert {row.board: row.round for row in clients if row.left_out} == dict.fromkeys(left_out, 1)
    assert len(clients) == ROUNDS * 8 - (ROUNDS - 1) * len(left_out)
    assert len(read_rows(played["asynchronous"].sim, RoundRow)) == MODELS
    for runs in played.values():
        assert {sample.board for sample in read_rows(runs.sim, SampleRow)} >= {"nano-1", "agx-orin-64gb-2"}


def test_boards_recall_what_an_earlier_run_measured(played):
    first = [row for row in read_rows(played["rounds"].sim, ClientRow) if row.round == 1]
    assert len(first) == 8
    assert all(row.recalled_samples or row.error for row in first), "also beside a service and with little memory"


@pytest.mark.parametrize("kind", ["text with Adam", pytest.param("LoRA", marks=pytest.mark.long)])
def test_own_tasks_over_natural_groups_write_the_same_rows_and_model_on_both(kind, project_root, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    if kind == "LoRA" and not all(importlib.util.find_spec(name) for name in ("transformers", "peft")):
        pytest.skip("needs the extra llm")
    task = tmp_path / "mine.py"
    task.write_text(LANGUAGE_MODEL if kind == "LoRA" else CHARACTERS, encoding="utf-8")
    write_texts(tmp_path / "texts")
    fleet = [{"device": "orin-nano"}, {"device": "xavier-nx", **({"width": 0.5} if kind == "LoRA" else {})}]
    changes = {
        "fleet": fleet,
        "data": {"partition": "natural", "dir": str(tmp_path / "texts")},
        "workload": {"task": str(task), "batch_size": 8, "local_epochs": 1, "learning_rate": 0.01},
    }
    more = [word for name, value in changes.items() for word in ("--set", f"{name}={json.dumps(value)}")]

    process = simulate(project_root, tmp_path / "sim", tmp_path, *more)
    assert process.returncode == 0, process.stdout + process.stderr
    assert run_here(monkeypatch, *words(project_root, "local", tmp_path / "local", *more)) == 0

    assert rows(tmp_path / "local") == rows(tmp_path / "sim")
    model = "model.safetensors"
    assert (tmp_path / "local" / model).read_bytes() == (tmp_path / "sim" / model).read_bytes()
    rounds = read_rows(tmp_path / "sim", RoundRow)
    assert rounds[-1].loss < rounds[0].loss
    assert {row.samples for row in read_rows(tmp_path / "sim", ClientRow)} != {0}
