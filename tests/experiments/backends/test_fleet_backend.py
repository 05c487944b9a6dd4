"""The fleet backend on loopback: Flower's SuperLink and SuperNodes, recorded boards with real daemons and workers."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")

from contracts.desk import note_idle
from contracts.free_tasks import LANGUAGE_MODEL, write_texts
from contracts.loopback_fleet import Fleet, loopback_fleet
from contracts.processes import wait_for

from experiments.backends.fleet_backend import SLOW_START, watch_start
from experiments.backends.launcher import check_runnable
from experiments.backends.run_submission import write_connection
from fedge.devices.board_kinds import build_workload_kind
from fedge.devices.tables.mode_table import write_mode_table
from fedge.errors import BadInput
from fedge.experiment import Experiment, LinkSpec, SuperlinkSpec
from fedge.knowledge.recall import MAX_MODES, read_run_knowledge
from fedge.phases import add_listener, remove_listener
from fedge.powerd.powerd_client import PowerdClient as Power
from fedge.telemetry.run_folder import RUN_YAML, STORE
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow
from fedge.types import Modes, ProfileTable, Workload

ROOT = Path(__file__).resolve().parents[3]
YAML = """
name: loopback
seed: 1
rounds: {rounds}
backend: fleet
fleet: [{{device: orin-nano, name: board, count: {count}}}]
workload: {{task: digits-cnn, local_epochs: 1}}
exploration: {{probes: 1, probe_s: 0.1}}
superlink: {{address: "{address}", connect_timeout_s: 8}}
reply_timeout_s: 60
"""


def run(
    fleet: Fleet,
    tmp_path: Path,
    rounds: int,
    count: int,
    changes: Mapping[str, object] | None = None,
    begun: Callable[[], object] = lambda: None,
) -> subprocess.CompletedProcess[str]:
    """Run an experiment to its end; ``begun`` is called once its run folder is complete."""
    experiment = tmp_path / "exp.yaml"
    written = yaml.safe_load(YAML.format(rounds=rounds, count=count, address=fleet.address)) | dict(changes or {})
    experiment.write_text(yaml.safe_dump(written), encoding="utf-8")
    command = [sys.executable, "-m", "experiments.cli.main", "run", str(experiment), "--folder", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        wait_for(lambda: (tmp_path / "run" / RUN_YAML).is_file() or process.poll() is not None)
        begun()
        out, err = process.communicate(timeout=400)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def test_a_run_whose_program_does_not_start_says_once_what_may_keep_it(tmp_path):
    said, times = [], iter([0.0, 60.0, 121.0, 122.0])

    def listen(name: str, *, announce: bool) -> None:
        said.append((name, announce))

    check = watch_start(tmp_path, lambda: next(times))
    add_listener(listen)
    try:
        for _ in range(3):
            check()
    finally:
        remove_listener(listen)

    assert said == [(SLOW_START, True)]


def test_a_run_that_has_begun_says_nothing_of_its_start(tmp_path):
    said: list[str] = []
    (tmp_path / STORE).mkdir()
    check = watch_start(tmp_path, iter([0.0, 500.0]).__next__)

    def listen(name: str, *, announce: bool) -> None:
        said.append(name)

    add_listener(listen)
    try:
        check()
    finally:
        remove_listener(listen)

    assert said == []


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("fleet")
def test_real_boards_train_together_and_a_board_that_is_missing_is_a_row(tmp_path):
    with loopback_fleet(["orin-nano-jp6", "xavier-nx"], tmp_path) as fleet:
        found = {name: _limits(desk.settings.power_socket) for name, desk in fleet.desks.items()}

        done = run(fleet, tmp_path, rounds=1, count=3)

        left = {name: _limits(desk.settings.power_socket) for name, desk in fleet.desks.items()}
    assert done.returncode == 0, done.stderr + done.stdout
    assert "boards: 3 estimated" in done.stdout
    rounds, rows = read_rows(tmp_path / "run", RoundRow), read_rows(tmp_path / "run", ClientRow)
    assert len(rounds) == 1
    assert rounds[-1].accuracy > 0.5
    worked = {row.board for row in rows if row.error is None}
    assert worked == {"board-1", "board-2"}
    missing = [event for event in read_rows(tmp_path / "run", EventRow) if event.board == "board-3"]
    told = "never connected; `fedge fleet status --limit board-3` says what is wrong"
    assert [(event.kind, event.message) for event in missing][:1] == [("failed", told)]
    assert left == found


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("fleet")
def test_a_gpu_workstation_is_a_board_beside_a_jetson(tmp_path):
    entries = [{"device": "orin-nano", "name": "jetson"}, {"device": "gpu-workstation", "name": "cards"}]
    changes = {"fleet": entries, "reply_timeout_s": 300, "policy": {"name": "balanced", "max_slowdown": 1.5}}
    with loopback_fleet(["orin-nano-jp6", "gpu-workstation"], tmp_path, names=["jetson-1", "cards-1"]) as fleet:
        note_idle(fleet.desks["jetson-1"])
        done = run(fleet, tmp_path, rounds=2, count=2, changes=changes)

    assert done.returncode == 0, done.stderr + done.stdout
    rows = [row for row in read_rows(tmp_path / "run", ClientRow) if row.board == "cards-1"]
    assert [(row.status, row.error, row.device) for row in rows] == [("done", None, "gpu-workstation")] * 2
    assert all(row.power_w > 0 and row.work_s > 0 for row in rows)
    assert rows[0].gpu_mhz == 2100  # nothing of it is known before its first round
    assert (tmp_path / "run" / "report.html").stat().st_size > 0


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("fleet")
def test_boards_learn_from_a_table_that_only_the_server_has(tmp_path):
    reference = tmp_path / "train" / "mobilenetv3l-gld23k.csv"
    reference.parent.mkdir()
    average = build_workload_kind("orin-nano", Workload("mobilenetv3l-gld23k", 16)).average
    rows = {"modes": Modes(average.modes.knobs[::9]), "step_s": average.step_s[::9], "power_w": average.power_w[::9]}
    table = ProfileTable(
        "orin-nano", "mobilenetv3l-gld23k", batch_size=16, sha256="", path="", label="calibrated", **rows
    )
    write_mode_table(reference, table)
    entry = {"device": "orin-nano", "name": "board", "references": [str(reference)]}
    with loopback_fleet(["orin-nano-jp6"], tmp_path) as fleet:
        note_idle(fleet.desks["board-1"])
        done = run(fleet, tmp_path, 1, 1, changes={"fleet": [entry]}, begun=reference.unlink)

    assert done.returncode == 0, done.stderr + done.stdout
    assert [(row.board, row.status) for row in read_rows(tmp_path / "run", ClientRow)] == [("board-1", "done")]
    (sent,) = read_run_knowledge(tmp_path / "run").references["board-1"]
    assert (sent.workload, sent.label, len(sent.rows)) == ("mobilenetv3l-gld23k", "calibrated", MAX_MODES)
    assert "mobilenetv3l" not in (tmp_path / "run" / ".flwr" / "run-config.toml").read_text(encoding="utf-8")


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("fleet")
def test_a_boards_second_round_counts_on_the_link_that_its_first_one_measured(tmp_path):
    named = {"device": "orin-nano", "name": "named", "link": {"down_mbps": 8, "up_mbps": 4}}
    changes = {"fleet": [{"device": "orin-nano", "name": "board"}, named]}
    with loopback_fleet(["orin-nano-jp6"] * 2, tmp_path, names=["board-1", "named-1"]) as fleet:
        for desk in fleet.desks.values():
            note_idle(desk)
        done = run(fleet, tmp_path, rounds=2, count=2, changes=changes)

    assert done.returncode == 0, done.stderr + done.stdout
    rows = {(row.board, row.round): row for row in read_rows(tmp_path / "run", ClientRow)}
    rates = {
        key: tuple(4.0 * row.moved_mb / (spent_s - LinkSpec().latency_s) for spent_s in (row.down_s, row.up_s))
        for key, row in rows.items()
    }
    measured = rows["board-1", 1].link_mbps
    assert rates["board-1", 1] == pytest.approx((50.0, 20.0))
    assert rates["board-1", 2] == pytest.approx((measured, measured))
    assert all(rates["named-1", number] == pytest.approx((8.0, 4.0)) for number in (1, 2))


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("fleet")
def test_mods_act_on_what_real_boards_send(tmp_path):
    noise = {"noise_multiplier": 1e-4, "num_sampled_clients": 2, "initial_clipping_norm": 0.5}
    private = {"name": "DifferentialPrivacyClientSideAdaptiveClipping", "options": noise, "wraps": {"name": "FedAvg"}}
    mods = {"strategy": private, "mods": ["adaptiveclipping_mod", "message_size_mod"]}
    with loopback_fleet(["orin-nano-jp6", "xavier-nx"], tmp_path) as fleet:
        done = run(fleet, tmp_path, rounds=2, count=2, changes=mods)
        logs = [(tmp_path / board / "node" / "log").read_text(encoding="utf-8") for board in fleet.desks]

    assert done.returncode == 0, done.stderr + done.stdout
    assert {row.status for row in read_rows(tmp_path / "run", ClientRow)} == {"done"}
    for log in logs:
        norms = [float(norm) for norm in re.findall(r"clipped by value: ([\d.]+)\.\n", log)]
        assert len(norms) == log.count("Outgoing message size") == 2
        assert norms[0] == 0.5 != norms[1]  # the strategy adapts it to what the boards report
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "mods adaptiveclipping_mod, message_size_mod" in page


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("fleet")
def test_adapters_of_unequal_rank_are_trained_by_real_boards(tmp_path):
    if not all(importlib.util.find_spec(name) for name in ("transformers", "peft")):
        pytest.skip("needs the extra llm")
    task = tmp_path / "lora.py"
    task.write_text(LANGUAGE_MODEL, encoding="utf-8")
    write_texts(tmp_path / "texts")
    fleet_entries = [
        {"device": "orin-nano", "name": "whole"},
        {"device": "xavier-nx", "name": "half", "width": 0.5},
    ]
    changes = {
        "fleet": fleet_entries,
        "workload": {"task": str(task), "batch_size": 8, "local_epochs": 1, "learning_rate": 0.01},
        "data": {"dir": str(tmp_path / "texts"), "partition": "natural"},
        "reply_timeout_s": 300,  # importing transformers takes long on a busy machine
    }
    with loopback_fleet(["orin-nano-jp6", "xavier-nx"], tmp_path, names=["whole-1", "half-1"]) as fleet:
        for board, desk in fleet.desks.items():
            note_idle(desk)
            write_texts(desk.settings.state_dir / "texts")
            own = desk.settings.model_copy(update={"data_folder": str(desk.settings.state_dir / "texts")})
            (tmp_path / board / "node.yaml").write_text(own.model_dump_json(), encoding="utf-8")
        done = run(fleet, tmp_path, rounds=2, count=2, changes=changes)

    assert done.returncode == 0, done.stderr + done.stdout
    rows = read_rows(tmp_path / "run", ClientRow)
    assert [
        (row.board, row.status, row.width) for row in sorted(rows, key=lambda row: row.board) if row.round == 2
    ] == [
        ("half-1", "done", 0.5),
        ("whole-1", "done", 1.0),
    ]
    first, last = read_rows(tmp_path / "run", RoundRow)
    assert last.loss < first.loss


def _limits(socket: str) -> dict[str, object]:
    power = Power(socket)
    try:
        return power.get()["limits"]
    finally:
        power.close()


@pytest.mark.parametrize(
    ("superlink", "line"),
    [
        (SuperlinkSpec(), "insecure = true"),
        (SuperlinkSpec(root_certificates="/etc/fedge/ca.crt"), 'root-certificates = "/etc/fedge/ca.crt"'),
    ],
)
def test_the_connection_is_encrypted_where_there_is_a_certificate(superlink, line, tmp_path):
    write_connection(tmp_path, superlink)

    text = (tmp_path / "config.toml").read_text(encoding="utf-8")

    assert line in text.splitlines()
    assert 'address = "127.0.0.1:8000"' in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fleet": [{"device": "nano", "truth": "table:x.csv"}]}, r"fleet\[0\].truth: .*real"),
        ({"fleet": [{"device": "nano", "availability": {"on_s": 5, "off_s": 5}}]}, r"fleet\[0\].availability"),
        ({"fleet": [{"device": "nano", "battery": {"capacity_wh": 5}}]}, r"fleet\[0\].battery"),
        ({"fleet": [{"device": "nano"}], "strategy": {"name": "FedBuff"}}, "FedBuff on real boards"),
    ],
)
def test_what_only_emulated_boards_can_have_is_refused(changes, message):
    experiment = Experiment.model_validate({"backend": "fleet", **changes})

    with pytest.raises(BadInput, match=message):
        check_runnable(experiment)


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("fleet")
def test_a_superlink_that_is_not_there_is_told_without_a_traceback(tmp_path):
    done = run(Fleet("127.0.0.1:9", {}, {}), tmp_path, rounds=1, count=1)

    assert done.returncode == 2
    assert "superlink.address: got 127.0.0.1:9, where nobody answers" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()
    assert "127.0.0.1:9" in done.stderr
