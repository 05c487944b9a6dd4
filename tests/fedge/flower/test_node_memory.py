"""What a node learnt outlives the run: a second one of the same board starts from it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts.fake_nvml import FakeCard, FakeNvml, install
from contracts.reports import MAXN
from contracts.small_training import make_app, make_context, make_message, train_network
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedge.costs.layered_work import find_named_workload
from fedge.devices.board_kinds import build_surface, build_workload_kind
from fedge.errors import BadInput, BoardError
from fedge.experiment import FleetBoard, FleetEntry
from fedge.flower import node_memory, power_mod, power_mode
from fedge.flower.node_memory import MAX_RUNS, RECORD, NodeKnowledge, NodeMemory, read_memory, recall_earlier_runs
from fedge.flower.power_mod import ANSWER
from fedge.knowledge.evidence_files import read_evidence
from fedge.knowledge.knowledge_folder import format_date, list_entries
from fedge.knowledge.recall import ClientIdentity
from fedge.types import Measurement, RoundReport
from fedge.wire import ClientState, ReplyMessage, from_json

pytest.importorskip("torch", reason="the apps of these tests train with torch")

DEVICE = "emulated:agx-orin-64gb"
STEPS = 400


def play_run(number: int, rounds: int = 2, device: str = DEVICE, **options: Any) -> tuple[list[RoundReport], Context]:
    """Play the rounds of one run of a node: a new context and a new mod."""
    context = Context(number, 7, {"partition-id": 0}, RecordDict(), {})
    mod = power_mode("least-energy", device=device, max_slowdown=1.5, **options)
    replies = [mod(make_message(), context, make_app(STEPS)) for _ in range(rounds)]
    answers = [from_json(ReplyMessage, str(reply.content.config_records[RECORD][ANSWER])) for reply in replies]
    return [answer.report for answer in answers if answer.report is not None], context


def test_a_second_run_starts_from_what_the_first_one_measured(tmp_path):
    cold, _ = play_run(1, rounds=5, knowledge=tmp_path)
    warm, context = play_run(2, knowledge=tmp_path)
    forgetful, _ = play_run(3, rounds=1, knowledge=None)

    assert forgetful[0] == cold[0]
    known = read_memory(context).recalled or ()
    assert {part.mode for report in cold for part in report.parts} == {one.mode for one in known}
    assert all(report.recalled_samples > 0 for report in warm)
    assert sum(len(report.probes) for report in warm) < sum(len(report.probes) for report in cold[:2])
    assert warm[0].work_j < cold[0].work_j


def test_auto_is_the_folder_of_the_environment_and_nothing_without_it(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDGE_KNOWLEDGE", raising=False)
    monkeypatch.chdir(tmp_path)
    play_run(1, rounds=1)
    assert not any(tmp_path.iterdir())
    monkeypatch.setenv("FEDGE_KNOWLEDGE", str(tmp_path / "known"))
    play_run(1, rounds=1)
    (entry,) = list_entries(tmp_path / "known").entries
    assert (entry.form, entry.label, entry.device) == ("run", "calibrated", "agx-orin-64gb")


def test_a_folder_that_cannot_be_used_is_one_log_line_and_the_run_goes_on(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    reports, _ = play_run(1, knowledge=tmp_path / "file", cost="resnet18-imagenet")
    assert len(reports) == 2
    assert len([one for one in caplog.records if "forgotten at its end" in one.message]) == 1


def keep(folder: Path, run: int, node: int, rows: int = 5) -> NodeKnowledge:
    client = ClientIdentity("nano-1", board="nano-1", device="nano", workload="mine", batch_size=16)
    known = NodeKnowledge(folder, client, label="measured", run=f"{run}-{node}")
    measured = tuple(Measurement(MAXN, 10, 0.1 * run + 0.001 * node + 1e-6 * i, 5.0) for i in range(rows))
    memory = NodeMemory(ClientState(measured), 20, 1, (), known)
    node_memory.write_memory(make_context(), memory)
    return known


def test_a_board_that_fails_before_it_recalls_earlier_runs_recalls_them_once_it_works(tmp_path, monkeypatch):
    install(monkeypatch, FakeNvml([FakeCard()]))
    settings = tmp_path / "node.yaml"
    settings.write_text(f"board: here\npower_socket: {tmp_path}/none.sock\nstate_dir: {tmp_path}/state\n", "utf-8")
    known, context = keep(tmp_path / "known", run=1, node=0), make_context(settings=str(settings))

    def fail(_place: object) -> None:
        raise BoardError("no answer")

    monkeypatch.setattr(power_mod, "open_local_board", fail)
    power_mode("maxn", knowledge=tmp_path / "known")(make_message(), context, make_app(20))
    failed = read_memory(context)
    assert (failed.round, failed.steps, failed.recalled) == (1, 20, None)

    works = recall_earlier_runs(failed, known)
    assert works.steps == 20
    assert works.recalled
    node_memory.write_memory(context, works)
    keep(tmp_path / "known", run=2, node=0)
    assert recall_earlier_runs(read_memory(context), known).recalled == works.recalled


def test_nodes_that_write_at_once_lose_nothing(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda node: keep(tmp_path, run=1, node=node), range(8)))
    listing = list_entries(tmp_path)
    assert not listing.damaged
    rows = {
        row.step_s for entry in listing.entries for one in read_evidence(tmp_path, entry) for row in one.measurements
    }
    assert len(listing.entries) == 8
    assert len(rows) == 8 * 3  # the newest three of a mode


def test_the_newest_runs_of_a_board_are_kept(tmp_path, monkeypatch):
    now = iter(range(10**9, 10**9 + 10**8, 86400))
    monkeypatch.setattr(node_memory, "format_date", lambda _: format_date(next(now)))
    for run in range(1, MAX_RUNS + 4):
        keep(tmp_path, run=run, node=0)
    kept = [entry.id.split("-")[2] for entry in list_entries(tmp_path).entries]
    assert kept == [str(run) for run in range(4, MAX_RUNS + 4)]


@pytest.mark.slow
def test_on_a_board_a_second_run_needs_no_first_round_to_count_its_steps(tmp_path, monkeypatch):
    nvml = install(monkeypatch, FakeNvml([card := FakeCard()]))
    settings = tmp_path / "node.yaml"
    settings.write_text(f"board: here\npower_socket: {tmp_path}/none.sock\nstate_dir: {tmp_path}/state\n", "utf-8")

    def train(message: Message, _context: Context) -> Message:
        content = {"arrays": ArrayRecord(train_network(300, lambda _: nvml.work(card, 0.006)))}
        return Message(RecordDict({**content, "metrics": MetricRecord({"num-examples": 8})}), reply_to=message)

    reports = list[RoundReport]()
    for run in (1, 2):
        context = Context(run, 7, {"settings": str(settings)}, RecordDict(), {})
        reply = power_mode("maxn")(make_message(), context, train)
        report = from_json(ReplyMessage, str(reply.content.config_records[RECORD][ANSWER])).report
        reports.append(report)

    (entry, _) = list_entries(tmp_path / "state" / "knowledge").entries
    assert (entry.device, entry.boards, entry.label) == ("gpu-workstation", ("here",), "measured")
    assert [report.asked_steps for report in reports] == [300, 300]
    assert (read_memory(context).recalled or ())[0].steps == 300


FEW_STEPS = 50


def build_small() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 10))


def build_wide() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 512, 7), torch.nn.Conv2d(512, 512, 7), torch.nn.Flatten())


def name_network(build: object) -> dict[str, Any]:
    return {"network": f"{__name__}:{getattr(build, '__name__', '')}", "input_shape": (3, 32, 32)}


def run_round(context: Context, **options: Any) -> RoundReport:
    reply = power_mode("maxn", device=DEVICE, **options)(make_message(), context, make_app(FEW_STEPS))
    report = from_json(ReplyMessage, str(reply.content.config_records[RECORD][ANSWER])).report
    assert report is not None
    return report


@pytest.mark.parametrize("build", [build_small, build_wide])
def test_the_apps_own_network_prices_its_steps_by_its_layers(build):
    work, _ = find_named_workload(name_network(build)["network"], input_shape="3x32x32")
    device = DEVICE.partition(":")[2]
    board = FleetBoard(name=f"{device}-1", index=0, entry=FleetEntry(device=device))
    truth = build_surface(board, build_workload_kind(device, work), seed=1)
    report = run_round(make_context(), **name_network(build))

    top = truth.find_row(report.decision.mode)
    assert report.measured.step_s == pytest.approx(float(truth.step_s[top]), rel=0.1)
    assert report.measured.power_w == pytest.approx(float(truth.power_w[top]), rel=0.1)


def test_pricing_does_not_touch_the_apps_random_numbers_and_is_done_once():
    def draw(message: Message, context: Context) -> Message:
        drawn.append(float(torch.rand(1)))
        return make_app(FEW_STEPS)(message, context)

    drawn = list[float]()
    context = make_context()
    mod = power_mode(device=DEVICE, **name_network(build_small))
    torch.manual_seed(5)
    mod(make_message(), context, draw)
    torch.manual_seed(5)
    assert drawn == [float(torch.rand(1))]

    layers = dict(context.state.config_records["fedge-network"])
    mod(make_message(), context, draw)
    assert dict(context.state.config_records["fedge-network"]) == layers


def test_an_assumed_network_is_named_once_with_the_way_to_name_ones_own(caplog):
    context = make_context()
    for _ in range(2):
        run_round(context)
    lines = [record.message for record in caplog.records if "resnet18-imagenet" in record.message]
    assert len(lines) == 1
    assert "network=" in lines[0]
    assert "input_shape=" in lines[0]

    caplog.clear()
    run_round(make_context(), cost="resnet18-imagenet")
    run_round(make_context(), **name_network(build_small))
    assert not caplog.records


def test_a_network_that_cannot_be_counted_is_one_line():
    with pytest.raises(BadInput, match=r"^power_mode: network: .*an error: AttributeError"):
        run_round(make_context(), network=f"{__name__}:no_such_function", input_shape=(1, 2))
