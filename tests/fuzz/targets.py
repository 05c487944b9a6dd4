"""What is fuzzed: one entry per parser, with good inputs of our own making and the refusals that it documents."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from fuzz.fuzzing import FuzzTarget
from fuzz.mutation import (
    Mutate,
    mutate_bytes,
    mutate_frames,
    mutate_json,
    mutate_json_lines,
    mutate_numbers,
    mutate_parquet,
    mutate_request,
    mutate_tensors,
    mutate_text,
)

from fedge.errors import FedgeError
from fedge.powerd.config import BadConfig
from fedge.powerd.mode_records import PowerdRefusal
from fedge.powerd.state_keeper import CorruptState
from fedge.worker.frames import FrameError
from fedge.worker.refusal import Refusal

if TYPE_CHECKING:
    from fedge.wire import ReplyMessage
    from server.transport.client_port import IncomingReply, OutgoingRequest

CONF = """\
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /sys/devices/system/cpu/cpu0/online
CORE_1 /sys/devices/system/cpu/cpu1/online
< PARAM TYPE=FILE NAME=FBP_POWER_GATING >
FBP_PG_MASK /sys/devices/gpu.0/fbp_pg_mask
<PARAM TYPE=CLOCK NAME=EMC >
MAX_FREQ_KNEXT /sys/kernel/nvpmodel_clk_cap/emc
< PARAM TYPE=CLOCK NAME=CPU_A78_1 >
MAX_FREQ_KNEXT /sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq
< POWER_MODEL ID=2 NAME=MAXN_SUPER >
CPU_ONLINE CORE_0 1
CPU_ONLINE CORE_1 0
FBP_POWER_GATING FBP_PG_MASK 0x02
CPU_A78_1 MAX_FREQ 1728000
GPU MAX_FREQ -1
EMC MAX_FREQ 0
< POWER_MODEL ID=9 NAME=OTHER >
CPU_ONLINE CORE_1 1
< PM_CONFIG DEFAULT=9 >
"""
POWERD = {
    "floor": {"cores": 2, "cpu_khz": 400000},
    "emc": "lock",
    "emc_table_hz": [204000000, 1600000000],
    "hottest_c": 95.0,
    "needed_zones": ["CPU-therm"],
    "extras": ["fan"],
    "group": "fedge",
    "socket": "/run/fedge/powerd.sock",
    "state": "/var/lib/fedge-powerd",
}
REQUESTS: tuple[dict[str, Any], ...] = (
    {"v": 1, "verb": "set", "mode": {"cores": 2, "cpu_khz": 800000}, "lock_min": True},
    {"v": 1, "verb": "hold", "name": "me", "seconds": 10.5},
    {"v": 1, "verb": "fan", "percent": 40},
)
BATCH = {
    "version": 1,
    "board": "nano-1",
    "stream": "abc",
    "seq": 3,
    "lost": 0,
    "trace": {
        "start_s": [1e9, 1e9 + 1],
        "span_s": [1.0, 1.0],
        "power_w": [5.0, 6.0],
        "rails_w": {"VDD_IN": [5.0, 6.0]},
    },
    "progress": None,
}
TASK_YAML = b"""\
name: small
seed: 3
rounds: 2
backend: local
policy: {name: min-energy, deadline_s: 20.5}
fleet: [{device: nano, count: 1}, {device: xavier-nx, count: 2}]
workload: {local_epochs: 0.2}
"""


def _to_bytes(*values: Any) -> Callable[[], Sequence[bytes]]:
    made = tuple(value if isinstance(value, bytes) else json.dumps(value).encode() for value in values)
    return lambda: made


def _feed_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Return a feed that writes the input into a file of its folder and gives its path to ``read``."""

    def feed(data: bytes, folder: Path) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return feed


def _write_files(folder: Path, files: Iterable[tuple[str, bytes]], changed: Callable[[str], bool], data: bytes) -> None:
    """Write files below a folder, with ``data`` in those whose path is ``changed``."""
    for name, content in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if changed(name) else content)


def _read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _import(module: str, name: str) -> Callable[..., Any]:
    """Return a function that is imported when it is called."""

    def call(*arguments: Any) -> Any:
        from importlib import import_module

        return getattr(import_module(module), name)(*arguments)

    return call


def _target(
    seeds: Callable[[], Sequence[bytes]],
    feed: Callable[[bytes, Path], object],
    mutate: Mutate = mutate_json,
    *refusals: type[BaseException],
) -> FuzzTarget:
    return FuzzTarget(cache(seeds), feed, mutate, (FedgeError, *refusals))


# The power daemon and the worker --------------------------------------------------------------------------------------


def _feed_conf(data: bytes, folder: Path) -> None:
    from fedge.powerd import nvpmodel
    from fedge.powerd.knobs import Hardware
    from fedge.powerd.machine import Machine
    from fedge.powerd.write_plan import EmcFiles

    machine = Machine(str(folder))
    path = machine.path(nvpmodel.CONF)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    conf = nvpmodel.parse_conf(machine.read(nvpmodel.CONF))
    hardware = Hardware({0: "", 1: ""}, (400000, 1728000), (), "cap", EmcFiles(None, None, None, None), (204, 1600))
    presets = nvpmodel.list_presets(machine, conf, conf.default, hardware)
    json.dumps([preset._asdict() for preset in presets])


def _feed_request(data: bytes, folder: Path) -> None:
    from fedge.powerd import line_protocol

    request = line_protocol.decode_request(data)
    line_protocol.parse_verb(request)
    if "mode" in request:
        line_protocol.parse_mode(request)
        line_protocol.parse_token(request)
    for field in ("seconds", "percent"):
        if field in request:
            line_protocol.parse_number(request, field)
    if "name" in request:
        line_protocol.parse_text(request, "name")
    line_protocol.encode_reply({"got": request})


def _feed_powerd_answer(data: bytes, folder: Path) -> None:
    from fedge.powerd.powerd_client import PowerdClient, PowerdError

    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        client = PowerdClient(path, 5.0)
        client._link = client._connect()
        peer, _ = listener.accept()
        with peer:
            peer.sendall(data[:100_000] + b"\n")
            peer.shutdown(socket.SHUT_WR)
            try:
                client.get()
            except PowerdError:
                pass
            finally:
                client.close()


def _feed_frame(data: bytes, folder: Path) -> object:
    from fedge.worker import frames

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        ours.settimeout(5.0)
        ours.sendall(data[:100_000])
        ours.shutdown(socket.SHUT_WR)
        found = frames.read(theirs)
    if found is not None:
        _, _, body_bytes = frames.PREFIX.unpack_from(data)
        assert sum(array.nbytes for array in found[1].values()) == body_bytes
    return found


def _mutate_frame(random: Any, data: bytes) -> bytes:
    """Change the header, whose length is right again, or the bytes of the whole."""
    from fedge.worker import frames

    _, length, body = frames.PREFIX.unpack_from(data)
    if random.randrange(3) == 0:
        return mutate_bytes(random, data)
    header = mutate_json(random, data[frames.PREFIX.size : frames.PREFIX.size + length])
    return frames.PREFIX.pack(frames.MAGIC, len(header), body) + header + data[frames.PREFIX.size + length :]


def _make_frames() -> Sequence[bytes]:
    import numpy as np

    from fedge.worker import frames

    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.write(ours, {"v": 1, "verb": "train", "steps": 3}, {"a": np.arange(12.0), "b": np.zeros((2, 0))})
        return [theirs.recv(1 << 16)]


def _feed_serve(data: bytes, folder: Path) -> None:
    from fedge.worker import frames, inference_services

    fields = frames.parse_header(data)
    inference_services.parse_service(fields)
    times = inference_services.parse_arrival_times(fields, 0.0)
    for _, _ in zip(range(20), times or (), strict=False):
        pass
    inference_services.parse_training_share(fields)


def _make_saved_states() -> Sequence[bytes]:
    from fedge.powerd import state_keeper

    with tempfile.TemporaryDirectory(prefix="fedge-fuzz-") as name:
        state_keeper.save_state(Path(name), state_keeper.SavedState("boot", {"cores": {"1": 1}}))
        return [(Path(name) / state_keeper.FILE).read_bytes()]


SERVE = {
    "name": "x",
    "latency_s": 0.1,
    "batch_size": 4,
    "max_wait_s": 0.05,
    "when_late": "serve",
    "most_waiting": 9,
    "arrivals": {"kind": "poisson", "rate_hz": 5.0, "seed": 1},
    "training_share": 0.5,
}


# Messages and telemetry -----------------------------------------------------------------------------------------------


def _make_replies() -> Sequence[bytes]:
    from contracts.reports import answer

    from fedge.wire import to_json

    return [to_json(answer("nano-1", 40.0)).encode()]


def _feed_wire(record: str) -> Callable[[bytes, Path], object]:
    def feed(data: bytes, folder: Path) -> object:
        from fedge import wire

        kept = wire.to_json(wire.from_json(getattr(wire, record), data.decode("utf-8", "replace")))
        return kept.encode("utf-8")

    return feed


@dataclass(frozen=True, slots=True)
class _TwoBoards:
    """Boards of which the first replies with a hostile report and front, the second with good ones."""

    hostile: ReplyMessage

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: object = None
    ) -> Mapping[str, IncomingReply]:
        from contracts.reports import answer

        from fedge.types import TrainResult
        from server.transport.client_port import IncomingReply

        answers = {board: answer(board, 5.0) for board in questions} | {"nano-1": self.hostile}
        trained = {board: question.arrays for board, question in questions.items() if question.arrays is not None}
        return {
            board: IncomingReply(
                answers[board],
                TrainResult(trained[board], 0.5, 0.5)
                if board in trained and answers[board].report is not None and not answers[board].cut
                else None,
            )
            for board in questions
        }


class _NoTask:
    """A model of one array that learns nothing."""

    buffers = ()

    def initial_arrays(self, seed: int) -> dict[str, Any]:
        import numpy as np

        return {"w": np.zeros(3, np.float32)}

    def evaluate(self, arrays: object) -> tuple[float, float]:
        return 0.5, 0.5


def _feed_round(data: bytes, folder: Path) -> None:
    """Run two rounds, stored on disk, with a board that always replies the same."""
    from fedge.errors import RunFailed
    from fedge.experiment import Experiment, FleetEntry
    from fedge.telemetry.store import RunTables
    from fedge.wire import InvalidMessage, ReplyMessage, from_json
    from server.rounds.coordinator import Coordinator

    hostile = from_json(ReplyMessage, data.decode("utf-8", "replace"))
    if {hostile.board, hostile.report.board if hostile.report else hostile.board} != {"nano-1"}:
        raise InvalidMessage("it speaks for another board")
    tables = RunTables(folder)
    try:
        experiment = Experiment(fleet=(FleetEntry(device="nano", count=2),), rounds=2)
        run = Coordinator(experiment, _TwoBoards(hostile), _NoTask(), tables, checkpoints=folder / "checkpoints")  # type: ignore[arg-type]
        state = run.run()
        spent = (state.fleet.clock_s, state.spent_j)
        assert all(0.0 <= figure < math.inf for figure in spent), f"time and energy of the run: {spent}"
    except RunFailed as error:
        raise AssertionError(f"one board ends the run of both: {error}") from error
    finally:
        tables.close()


def _make_requests() -> Sequence[bytes]:
    from contracts.reports import report

    from fedge.wire import ClientState, RequestMessage, to_json

    state = ClientState((report("nano-1", 3.0).measured,), 41.5, 9.0)
    return [to_json(RequestMessage("train", 3, 1.0, "min-energy", state, settings={"a": 1.0})).encode()]


def _feed_batch(data: bytes, folder: Path) -> None:
    from fedge.telemetry.intake import Intake, decode_intake, encode_intake
    from fedge.telemetry.live_records import decode_batch
    from fedge.telemetry.store_records import SampleRow
    from fedge.telemetry.store_schema import BY_ROW, rows_to_batch

    intake, batch = Intake(), decode_batch(data)
    verdict = intake.judge("nano-1", batch, 2e9)
    if verdict.rows:
        rows_to_batch(BY_ROW[SampleRow], verdict.rows)
    intake.accept(verdict)
    decode_intake(encode_intake(intake))


def _make_progress() -> Sequence[bytes]:
    from fedge.telemetry.live_records import BoardProgress

    return [json.dumps(asdict(BoardProgress(board="nano-1", device="nano", at_s=1e9, state="training"))).encode()]


INTAKE = {
    "version": 1,
    "boards": {"nano-1": {"streams": [["abc", 3]], "end_s": 1e9, "heard_s": 1e9, "counts": {"taken": 3}}},
}


# HTTP: the board page and the intake of telemetry ---------------------------------------------------------------------

HTTP_WAIT_S = 0.2
"""Seconds in which a connection is answered; a stream, or what has not arrived as a whole, goes on after them."""
PAGE_REQUESTS = tuple(
    f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: a=b\r\nIf-None-Match: x\r\n\r\n".encode()
    for path in ("/", "/api/view", "/api/boards/nano-1", "/api/rounds/1", "/metrics", "/static/board.js")
)
BATCH_BODY = json.dumps(BATCH).encode()
BATCH_REQUEST = (
    b"POST /telemetry HTTP/1.1\r\nHost: fleet\r\nX-Fedge-Board: nano-1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BATCH_BODY), BATCH_BODY)
)


@cache
def _open_page() -> Any:
    """Return how uvicorn serves the board page of a small run."""
    from server.dashboard import http_server
    from server.dashboard.prometheus_metrics import make_exposition
    from server.dashboard.run_source import RunSource
    from server.dashboard.security import build_access
    from server.dashboard.web_app import build_dashboard_app

    folder = Path(tempfile.mkdtemp(prefix="fedge-fuzz-"))
    (folder / "run.yaml").write_bytes(TASK_YAML)
    _write_files(folder, _store_bytes("wal"), lambda _: False, b"")
    feed = http_server.ViewFeed(RunSource(folder), now_s=lambda: 0.0)
    return http_server._config(build_dashboard_app(feed, build_access("127.0.0.1", 1, None), make_exposition()))


@cache
def _open_intake() -> Any:
    """Return how uvicorn serves the intake."""
    from server.dashboard import http_server
    from server.dashboard.telemetry_ingest import ingest_app, open_ingest

    return http_server._config(ingest_app(open_ingest(Path(tempfile.mkdtemp(prefix="fedge-fuzz-")))), "auto")


@cache
def _open_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _feed_http(open_config: Callable[[], Any]) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, folder: Path) -> None:
        answer = _open_loop().run_until_complete(_talk_http(open_config(), data))
        status = answer[9:12]
        assert not answer or (answer.startswith(b"HTTP/1.1 ") and status < b"500"), f"answered {answer[:40]!r}"

    return feed


async def _talk_http(config: Any, data: bytes) -> bytes:
    """Send bytes over a connection of its own, and return the beginning of the answer once nobody works on them."""
    from uvicorn.server import ServerState

    if not config.loaded:
        config.load()
    loop, state = asyncio.get_running_loop(), ServerState()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    await loop.connect_accepted_socket(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state={}), theirs
    )
    answer = b""
    with ours, suppress(OSError, TimeoutError):
        await asyncio.wait_for(loop.sock_sendall(ours, data), HTTP_WAIT_S)
        ends_s = loop.time() + HTTP_WAIT_S
        for _ in range(4):
            await asyncio.sleep(0)  # until the bytes are read
        while (tasks := set(state.tasks)) and loop.time() < ends_s:
            await asyncio.wait(tasks, timeout=HTTP_WAIT_S)
        answer = ours.recv(64)
    while tasks := set(state.tasks):
        done, _ = await asyncio.wait(tasks, timeout=10.0)
        assert done, "a request goes on after its connection has ended"
    return answer


# The store ------------------------------------------------------------------------------------------------------------


@cache
def _store_bytes(kind: str) -> tuple[tuple[str, bytes], ...]:
    """Return the files of a small store, by path: with write-ahead files, or with parts."""
    from contracts.store_rows import client_row, event_row, round_row, sample_row

    from fedge.telemetry.store import RunTables

    with tempfile.TemporaryDirectory(prefix="fedge-fuzz-") as name:
        folder = Path(name)
        tables = RunTables(folder)
        for number in range(1, 4):
            tables.append([round_row(number), client_row(number), event_row(number), sample_row(float(number))])
        if kind == "parquet":
            tables.close()
        else:
            tables._lock.release()
        return tuple(_read_files(folder).items())


def _make_store(table: str, kind: str) -> Callable[[], Sequence[bytes]]:
    return lambda: [data for name, data in _store_bytes(kind) if f"/{table}/" in name and name.endswith(kind)]


def _feed_store(table: str, kind: str) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, folder: Path) -> None:
        from fedge.telemetry.store_reader import RunReader, read_rows
        from fedge.telemetry.store_schema import BY_NAME

        _write_files(folder, _store_bytes(kind), lambda name: f"/{table}/" in name and name.endswith(kind), data)
        read_rows(folder, BY_NAME[table].row)
        with RunReader(folder) as run:
            run.arrow(table)
            if crc32(data) % 4 == 0:  # starting DuckDB takes ten times as long as all else
                run.query(f"select * from {table} limit 5")

    return feed


def _reopen_store(data: bytes, folder: Path) -> None:
    """Open the store for writing, as a resumed run does."""
    from contracts.store_rows import client_row

    from fedge.telemetry.store import RunTables

    _write_files(folder, _store_bytes("wal"), lambda name: "/clients/" in name and name.endswith("wal"), data)
    tables = RunTables(folder)
    try:
        tables.forget_after(1)
        tables.append([client_row(2)])
    finally:
        tables.close()


# Files of users -------------------------------------------------------------------------------------------------------


def _make_variants() -> Sequence[bytes]:
    from fedge.analysis.topology.channel_plan import NetworkVariant
    from fedge.analysis.topology.variant_files import variant_to_dict
    from fedge.costs.layers.network_cost import LayerCost, NetworkCost
    from fedge.worker.channel_cuts import LayerCut

    shape, stays = (3, 8, 8), (0, 3, 7)
    plan = {"0": LayerCut(None, stays, (3, 8)), "3": LayerCut(stays, None, (8, 4))}
    layer = LayerCost("0", "conv", 1.0, 2.0, 3.0, 4.0, 5, 6)
    cost = NetworkCost("tiny", shape, (layer, layer), "made up")
    return [json.dumps(variant_to_dict(NetworkVariant("tiny", shape, "l1", 1, 0.4, 0.5, 0.45, plan, cost))).encode()]


def _feed_variant(path: Path) -> None:
    from fedge.analysis.topology.variant_files import read_variant, variant_to_dict
    from fedge.costs.layers.network_source import load_network_cost

    json.dumps(variant_to_dict(read_variant(path)), allow_nan=False)
    load_network_cost(str(path))


def _make_layers() -> Sequence[bytes]:
    return [json.dumps(json.loads(_make_variants()[0])["cost"]).encode()]


def _feed_layers(path: Path) -> None:
    from fedge.costs.layers.network_record import network_to_dict
    from fedge.costs.layers.network_source import load_network_cost

    json.dumps(network_to_dict(load_network_cost(str(path))), allow_nan=False)


PLACEMENT = {
    "format": "fedge-placement-1",
    "device": "nano",
    "model": "resnet18",
    "input": [3, 224, 224],
    "label": "estimated",
    "chosen": {
        "placement": [{"accelerator": "cuda-cores", "precision": "fp16", "batch_size": 4}],
        "instances": [{"batch_s": 0.1}],
        "full_load_w": 9.0,
        "rate_hz": 5.0,
    },
}


def _make_loaders() -> Sequence[bytes]:
    from contracts.pipelines import PLAIN

    from fedge.costs.input_pipeline.pipeline_fit import FittedLoader, FittedPipeline
    from fedge.wire import to_json

    pipeline = FittedPipeline(PLAIN, {"disk": PLAIN.storage}, 0.1)
    return [to_json(FittedLoader("nano", "net", "measured", "here", pipeline)).encode()]


def _make_profile_journal() -> Sequence[bytes]:
    header = {
        "event": "begin",
        "version": 1,
        "board": "nano",
        "workload": "net",
        "batch_size": 16,
        "kind": "train",
        "emulated": True,
        "label": "estimated",
        "source": "here",
        "total_power": "VDD_IN",
        "explorer": "active",
        "modes": 3,
        "seed": 0,
        "rule": {"a": 1.0},
        "software": {"fedge": "1"},
    }
    verdict = {
        "settled": True,
        "step_s": 0.3,
        "power_w": 10.0,
        "time_se_log": 0.03,
        "power_se_log": None,
        "steps": 40,
        "dropped": 2,
        "outliers": 1,
        "why": "",
    }
    mode = {
        "event": "mode",
        "mode": [1, 333.3, 500.0, 1600.0],
        "verdict": verdict,
        "throttled": False,
        "peak_c": 41.5,
        "attempts": 1,
        "seconds": 9.1,
        "joules": 91.5,
        "end_c": 40.25,
    }
    plan = {"event": "plan", "modes": [[1, 333.3, 500.0, 1600.0], [2, 333.3, 500.0, 1600.0]]}
    failed = {"event": "failed", "mode": [2, 333.3, 500.0, 1600.0], "reason": "gone", "seconds": 0.5}
    lines = [header, plan, mode, failed]
    return ["".join(json.dumps(line) + "\n" for line in lines).encode()]


def _feed_profile_journal(path: Path) -> None:
    from fedge.characterisation.profiling_journal import campaign_to_dict, parse_journal, save_campaign

    past, _ = parse_journal(path, path.read_bytes())
    if past.header is not None:
        json.dumps(campaign_to_dict(past.header, past, finished=False))
        save_campaign(path.with_name("t.csv"), past.header, past, finished=False)


@cache
def _sweep_files() -> dict[str, bytes]:
    from characterised.fake import FakeRig, fake_plan

    from fedge.characterisation.sweep_run import SweepRun
    from fedge.characterisation.sweep_store import open_journal

    with tempfile.TemporaryDirectory(prefix="fedge-fuzz-") as name:
        folder, plan, rig = Path(name) / "out", fake_plan(workers=(0, 1), batches=(8,), repeats=1), FakeRig()
        with open_journal(folder) as journal:
            journal.begin(plan, dict.fromkeys(plan.boards, rig.software))
            sweep = SweepRun(plan, dict.fromkeys(plan.boards, rig), journal)
            while sweep.remaining_points:
                sweep.run_next()
        return _read_files(folder)


def _feed_sweep(changed: Callable[[str], bool]) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, folder: Path) -> None:
        from fedge.characterisation.sweep_findings import compute_pooled_findings  # noqa: F401  its import is heavy
        from fedge.characterisation.sweep_store import read_result

        _write_files(folder, _sweep_files().items(), changed, data)
        for point in read_result(folder).points:
            point.read_minibatches()
            point.read_sensor_trace()

    return feed


def _is_minibatches(name: str) -> bool:
    return name == next(one for one in sorted(_sweep_files()) if one.endswith(".parquet"))


def _make_tables() -> Sequence[bytes]:
    from contracts.boards import write_table

    with tempfile.TemporaryDirectory(prefix="fedge-fuzz-") as name:
        return [write_table(Path(name) / "net.csv", rows=slice(0, 40, 8)).read_bytes()]


def _feed_table(path: Path) -> None:
    from fedge.devices.tables.mode_table import read_mode_table, write_mode_table

    write_mode_table(path.with_name("again.csv"), read_mode_table(path, "board", "net", 16))


def _read_shipped(folder: str) -> Callable[[], Sequence[bytes]]:
    root = Path(__file__).resolve().parents[2]
    return lambda: [path.read_bytes() for path in sorted((root / folder).glob("*.yaml"))[:2]]


BOFL = {"1000000,500000000,1600000000": [0.1, 1.0], "2000000,900000000,1600000000": [0.05, 1.5]}


def _feed_bofl(path: Path) -> None:
    from fedge.devices.tables.published_files import import_bofl_json

    import_bofl_json(str(path), path.read_text(encoding="utf-8"), 16, 4)


AVAILABILITY = b"board,on_s,off_s\nnano-1,0,10.5\nnano-1,20,\nnano-2,5,9\n"
PLACED = b"""instances,batch_sizes,precisions,images_per_s,watts
cuda-cores,64,fp32,415.2,55.1
cuda-cores+dla-0,8+8,fp32+fp16,346.0,
"""
STEPS = {
    "columns": ["in_channels", "out_channels", "kernel", "padding", "stride", "groups", "input_size"],
    "levels": {"0": [[3, 64, 7, 3, 2, 1, 224]], "50": [[3, 32, 7, 3, 2, 1, 224]]},
}
TEGRASTATS = (
    b"RAM 2448/7765MB (lfb 1x4MB) SWAP 0/3882MB CPU [4%@1190,off,2%@1190] EMC_FREQ 5%@1600 GR3D_FREQ 40%@921 "
    b"PLL@33C CPU@35.5C POM_5V_IN 2532/2532 POM_5V_GPU 40/40\n"
)


def _feed_step_table(path: Path) -> None:
    from fedge.costs.memory.step_table import read_step_table

    path.with_name("net.csv").write_text("pruned_pct,batch_size,step_ms,memory_mb\n0,8,10.5,300\n50,8,,\n")
    read_step_table(path)


@cache
def _onnx_bytes() -> bytes:
    import onnx

    make, shape = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    weight = onnx.helper.make_tensor("w", shape, [2, 3, 1, 1], [0.5] * 6)
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"]), onnx.helper.make_node("Relu", ["y"], ["z"])]
    ends = [make("x", shape, [1, 3, 4, 4])], [make("z", shape, [1, 2, 4, 4])]
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, "net", *ends, [weight])).SerializeToString()


# Models, checkpoints and knowledge ------------------------------------------------------------------------------------


def _make_checkpoints() -> Sequence[bytes]:
    import numpy as np
    from contracts.reports import answer, front, report

    from fedge.types import TrainResult
    from fedge.wire import ClientState
    from server.state.checkpoint import ClientHistory, FleetState, PendingResult, RunState, save

    late = PendingResult(3, 3.0, 45.0, answer("nano-1", 40.0), TrainResult({"b": np.ones(2, np.float32)}, 0.4, 0.9))
    known = ClientState((report("nano-1", 3.0).measured,), 41.5, 9.0)
    fleet = FleetState(12.5, {"nano-1": known}, {"nano-1": front()}, {"nano-1": ClientHistory(100, 0.5, 0.8, 12.0, 3)})
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array(3, np.int64)}
    with tempfile.TemporaryDirectory(prefix="fedge-fuzz-") as name:
        state = RunState(3, fleet, arrays, {"m_t/dict/000000/b": np.ones(3)}, {"pacer_s": 7.25}, 89.0, (late,), 12.5)
        return [save(Path(name), state).read_bytes()]


def _feed_checkpoint(data: bytes, folder: Path) -> None:
    from server.state.checkpoint import load_latest, save

    (folder / "round-000003.safetensors").write_bytes(data)
    state = load_latest(folder)
    if state is not None:
        save(folder, state)


def _make_models() -> Sequence[bytes]:
    import numpy as np
    from contracts.boards import MAXN, coefficients, made_up_table

    from fedge.knowledge.evidence_files import table_measurements
    from fedge.knowledge.model_file import BoardModel, ModelInfo, ModelOrigin, save_model
    from fedge.physics.prior_knowledge import PriorKnowledge
    from fedge.types import LabelledValue, Modes

    rows = table_measurements(made_up_table(every=200))
    table = made_up_table(every=150)
    about = ModelInfo(
        method="physical",
        device="my-board",
        workload="net",
        batch_size=16,
        origin=ModelOrigin("measured", "net.csv", 630, "a" * 64, "random", 12.5, 300.0),
        candidates="the table's modes",
        idle=LabelledValue(12.0, "estimated", "a guess"),
    )
    known = PriorKnowledge(MAXN, (coefficients(),), (replace(table, sha256="b" * 64),), 12.0, 7)
    with tempfile.TemporaryDirectory(prefix="fedge-fuzz-") as name:
        path = Path(name) / "model.safetensors"
        save_model(path, BoardModel(about, rows, Modes(np.asarray(table.modes.knobs)), known))
        return [path.read_bytes()]


@cache
def _knowledge_files() -> dict[str, bytes]:
    from contracts.reports import report

    from fedge.knowledge import knowledge_folder as folders

    with tempfile.TemporaryDirectory(prefix="fedge-fuzz-") as name:
        folder = Path(name)
        content = folders.encode_measurements({"nano-1": (report("nano-1", 3.0).measured,)})
        entry = folders.KnowledgeEntry(
            id="run-1",
            form="run",
            device="nano",
            workload="net",
            batch_size=16,
            label="estimated",
            source="a run",
            file="entries/run-1.rows",
            rows=1,
            sha256=folders.hash_content(content),
            boards=("nano-1",),
            conditions={"torch": "2"},
            date=folders.format_date(1e9),
            probes=1,
        )
        folders.add_entry(folder, entry, content)
        folders.list_entries(folder)  # writes the index
        return _read_files(folder)


def _make_knowledge(part: str) -> Callable[[], Sequence[bytes]]:
    return lambda: [data for name, data in _knowledge_files().items() if part in name]


def _feed_knowledge(part: str) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, folder: Path) -> None:
        from fedge.knowledge import knowledge_folder as folders

        _write_files(folder, _knowledge_files().items(), lambda name: part in name, data)
        found = folders.list_entries(folder)
        for line in found.damaged:
            if not line.isprintable():
                raise FedgeError(line)
        for entry in found.entries:
            folders.read_measurements(folder, entry)

    return feed


# Run and sweep folders ------------------------------------------------------------------------------------------------


def _feed_summary(data: bytes, folder: Path) -> None:
    """Load a run with this ``summary.json``, for its report and for the board page."""
    from experiments.report.run.loaded_runs import load_run
    from server.dashboard.run_source import RunSource

    (folder / "run.yaml").write_bytes(TASK_YAML)
    (folder / "summary.json").write_bytes(data)
    _write_files(folder, _store_bytes("wal"), lambda _: False, data)
    RunSource(folder).view()
    load_run(folder)


SUMMARY = {"rounds": 3, "wall_s": 2.5, "labels": {"nano-1": {"power": "estimated"}}, "knowledge": {"recalled": 1}}
POINT = {"identity": "abc", "variant": {"seed": 1}, "overrides": ["seed=1"], "seed": 1, "fedge": "1", "wall_s": 2.0}


def _feed_point(data: bytes, folder: Path) -> None:
    from experiments.sweeps.point_plan import RECORD, read_point_file
    from fedge.telemetry import run_folder

    (folder / "point.json").write_bytes(data)
    (folder / "summary.json").write_bytes(data)
    read_point_file(folder / RECORD)
    read_point_file(folder / run_folder.SUMMARY)


SWEEP = b"""\
experiment: exp.yaml
grid: {policy: [maxn, min-energy], rounds: [1, 2]}
seeds: [1, 2]
"""


def _feed_sweep_spec(path: Path) -> None:
    from experiments.sweeps.point_plan import plan_sweep

    (path.parent / "exp.yaml").write_bytes(TASK_YAML)
    plan_sweep(path)


NODE_YAML = b"""\
board: nano-1
device: nano
power_socket: /run/fedge/powerd.sock
sample_hz: 10
telemetry: {url: "https://server:8443/telemetry", ca: ca.crt, certificate: b.crt, key: b.key, spool_mb: 64}
"""
SERVICE_YAML = b"store: /var/lib/s\nruns: /var/lib/r\ningest: /run/i.sock\nport: 8400\nnames: [a.org]\nstore_gb: 20\n"
PROBLEMS_YAML = b"- {power_w: 30}\n- {family: infer, power_w: 20.5, latency_s: 1, rate_hz: 60}\n"
SET_OPTIONS = (
    b"policy=min-energy",
    b"fleet.0.count=2",
    b"workload.local_epochs=0.5",
    b"policy={name: maxn}",
    b"rounds=2",
)


def _feed_override(data: bytes, folder: Path) -> None:
    from experiments.spec.experiment_loader import load_experiment

    (folder / "exp.yaml").write_bytes(TASK_YAML)
    load_experiment(folder / "exp.yaml", [data.decode("utf-8", "surrogateescape")])


TARGETS: dict[str, FuzzTarget] = {
    "powerd-nvpmodel": _target(_to_bytes(CONF.encode()), _feed_conf, mutate_text, PowerdRefusal, OSError),
    "powerd-config": _target(
        _to_bytes(POWERD),
        _feed_file("powerd.json", lambda path: _import("fedge.powerd.config", "load")(path, True)),
        mutate_json,
        BadConfig,
    ),
    "powerd-request": _target(_to_bytes(*REQUESTS), _feed_request, mutate_json, PowerdRefusal),
    "powerd-answer": _target(_to_bytes({"ok": True, "mode": {"cores": 2}, "stopped": []}), _feed_powerd_answer),
    "powerd-saved-state": _target(
        _make_saved_states,
        _feed_file("found.json", lambda path: _import("fedge.powerd.state_keeper", "load_state")(path.parent)),
        mutate_json,
        CorruptState,
    ),
    "worker-frame": _target(_make_frames, _feed_frame, _mutate_frame, FrameError),
    "worker-serve": _target(_to_bytes(SERVE), _feed_serve, mutate_json, FrameError, Refusal),
    "wire-reply": _target(_make_replies, _feed_wire("ReplyMessage")),
    "reply-in-round": _target(_make_replies, _feed_round, mutate_numbers),
    "wire-request": _target(_make_requests, _feed_wire("RequestMessage")),
    "telemetry-batch": _target(_to_bytes(BATCH), _feed_batch),
    "telemetry-progress": _target(
        _make_progress,
        _feed_file("nano-1.json", lambda path: _import("fedge.telemetry.progress_files", "read_progress")(path.parent)),
    ),
    "telemetry-intake": _target(
        _to_bytes(INTAKE), lambda data, _: _import("fedge.telemetry.intake", "decode_intake")(data)
    ),
    "http-page": _target(_to_bytes(*PAGE_REQUESTS), _feed_http(_open_page), mutate_request),
    "http-intake": _target(_to_bytes(BATCH_REQUEST), _feed_http(_open_intake), mutate_request),
    "store-wal": _target(_make_store("clients", "wal"), _feed_store("clients", "wal"), mutate_frames),
    "store-wal-samples": _target(_make_store("samples", "wal"), _feed_store("samples", "wal"), mutate_frames),
    "store-wal-writer": _target(_make_store("clients", "wal"), _reopen_store, mutate_frames),
    "store-parquet": _target(_make_store("clients", "parquet"), _feed_store("clients", "parquet"), mutate_parquet),
    "store-parquet-samples": _target(
        _make_store("samples", "parquet"), _feed_store("samples", "parquet"), mutate_parquet
    ),
    "yaml-experiment": _target(
        _to_bytes(TASK_YAML),
        _feed_file("exp.yaml", _import("experiments.spec.experiment_loader", "load_experiment")),
        mutate_text,
    ),
    "yaml-sweep": _target(_to_bytes(SWEEP), _feed_file("sweep.yaml", _feed_sweep_spec), mutate_text),
    "yaml-board": _target(
        _read_shipped("fedge/devices/catalogue"),
        _feed_file("b.yaml", _import("fedge.devices.catalogue", "load_spec")),
        mutate_text,
    ),
    "yaml-plan": _target(
        _read_shipped("experiments/configs/characterisation"),
        _feed_file("plan.yaml", _import("fedge.characterisation.plan_reader", "read_resolved_plan")),
        mutate_text,
    ),
    "yaml-node": _target(
        _to_bytes(NODE_YAML),
        _feed_file("node.yaml", _import("fedge.devices.local_board", "read_settings")),
        mutate_text,
    ),
    "yaml-service": _target(
        _to_bytes(SERVICE_YAML),
        _feed_file("board.yaml", _import("experiments.backends.dashboard_target", "read_settings")),
        mutate_text,
    ),
    "yaml-problems": _target(
        _to_bytes(PROBLEMS_YAML),
        _feed_file("p.yaml", lambda path: _import("fedge.serving.trial_search", "read_problems")(path, "train")),
        mutate_text,
    ),
    "set-option": _target(_to_bytes(*SET_OPTIONS), _feed_override, mutate_text),
    "yaml-cost-profile": _target(
        _read_shipped("fedge/costs/calibrated"),
        _feed_file("p.yaml", _import("fedge.costs.cost_profile", "read_profile")),
        mutate_text,
    ),
    "json-variant": _target(_make_variants, _feed_file("variant.json", _feed_variant)),
    "json-layers": _target(_make_layers, _feed_file("layers.json", _feed_layers)),
    "json-placement": _target(
        _to_bytes(PLACEMENT),
        _feed_file(
            "p.json",
            lambda path: _import("fedge.analysis.placement.planned_service", "read_planned_service")(path, "w"),
        ),
    ),
    "json-loader": _target(
        _make_loaders,
        _feed_file(
            "loader.json",
            lambda path: _import("fedge.costs.input_pipeline.pipeline_fit", "read_fitted_loader")(path, "model"),
        ),
    ),
    "json-bofl": _target(_to_bytes(BOFL), _feed_file("bofl.json", _feed_bofl), mutate_json, UnicodeDecodeError),
    "json-summary": _target(_to_bytes(SUMMARY), _feed_summary),
    "json-point": _target(_to_bytes(POINT), _feed_point),
    "json-claim": _target(
        _to_bytes({"run": "a", "until_s": 5.0, "stands_s": 9.0}),
        _feed_file("c", _import("fedge.client.real", "read_claim")),
    ),
    "json-idle": _target(
        _to_bytes({"sysfs": {"mode": 1.5}}),
        _feed_file("idle.json", _import("fedge.devices.jetson_board", "IdlePowerStore")),
    ),
    "journal-profile": _target(
        _make_profile_journal, _feed_file("t.csv.journal", _feed_profile_journal), mutate_json_lines
    ),
    "journal-sweep": _target(
        lambda: [_sweep_files()["journal"]], _feed_sweep(lambda name: name == "journal"), mutate_json_lines
    ),
    "sweep-parquet": _target(
        lambda: [data for name, data in _sweep_files().items() if _is_minibatches(name)],
        _feed_sweep(_is_minibatches),
        mutate_parquet,
    ),
    "csv-table": _target(_make_tables, _feed_file("net.csv", _feed_table), mutate_text),
    "csv-availability": _target(
        _to_bytes(AVAILABILITY),
        _feed_file("a.csv", _import("fedge.devices.availability", "read_availability_trace")),
        mutate_text,
    ),
    "csv-placement": _target(
        _to_bytes(PLACED),
        _feed_file("p.csv", _import("fedge.analysis.placement.accelerator_fit", "read_measurements")),
        mutate_text,
    ),
    "json-steps": _target(_to_bytes(STEPS), _feed_file("net.layers.json", _feed_step_table)),
    "tegrastats-line": _target(
        _to_bytes(TEGRASTATS),
        lambda data, _: _import("fedge.devices.sensing.tegrastats_sensor", "parse_line")(
            data.decode("utf-8", "replace")
        ),
        mutate_text,
    ),
    "tensors-checkpoint": _target(_make_checkpoints, _feed_checkpoint, mutate_tensors),
    "tensors-model": _target(
        _make_models, _feed_file("m.safetensors", _import("fedge.knowledge.model_file", "load_model")), mutate_tensors
    ),
    "knowledge-entry": _target(_make_knowledge("run-1.json"), _feed_knowledge("run-1.json")),
    "knowledge-index": _target(_make_knowledge("index"), _feed_knowledge("index")),
    "knowledge-run": _target(_make_knowledge("run-1.rows"), _feed_knowledge("run-1.rows")),
}
if find_spec("onnx") is not None:
    TARGETS["onnx-network"] = _target(
        lambda: [_onnx_bytes()],
        _feed_file("net.onnx", _import("fedge.costs.layers.onnx_graph", "read_onnx")),
        mutate_bytes,
    )
