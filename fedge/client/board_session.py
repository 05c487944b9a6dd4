"""A session on a real board: its device, its worker, and its share of the data set as a file for the worker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge import workloads
from fedge.client.client_setup import ClientSetup
from fedge.client.inference_service import ExpectedService, average_inference_costs, build_demand, describe_service
from fedge.client.memory_scaling import build_scaling_context
from fedge.client.prediction_requests import CachedPredictor
from fedge.client.round_state import count_steps
from fedge.client.worker_training import STRETCH_LIMIT_S, load_worker_task, read_file_task
from fedge.costs.layered_work import build_workload
from fedge.decisions.candidate_modes import mask_candidates_and_presets
from fedge.devices.board_kinds import build_link, list_priors, mode_idle_power_w
from fedge.devices.local_board import LocalBoard, NodeSettings, open_local_board
from fedge.errors import BadInput, refuse_unwritable
from fedge.experiment import Experiment, ExplorationSpec, FleetBoard, ServingSpec, list_boards
from fedge.json_reader import parse_json
from fedge.knowledge.evidence_files import to_table
from fedge.modes import build_grid
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors import load_predictor
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, Modes, ReferenceRows, Workload
from fedge.wire import RequestMessage
from fedge.worker import sources
from fedge.worker.builtin_tasks import TASKS
from fedge.worker.worker_client import WorkerClient
from fedge.workloads import datasets
from fedge.workloads.partitions import split_data, split_test

SAMPLES_PER_PROBE = 4
# A probe lasts at least as many samples of the power sensor: their noise of 1 to 2 % is then as small as that of steps.


def prepare_source(experiment: Experiment, index: int, folder: Path, own: str | None) -> Mapping[str, Any]:
    """Return the data source for the worker: the board's own folder, or a file with the share of board ``index``.

    The file is written once per data set, split and seed.

    Args:
        own: The board's own data folder; None for a share of the task's data set.

    Raises:
        BadInput: If the task's data set is unknown or the folder cannot be written.
    """
    if own is not None:
        return {"folder": own}
    path = folder / f"{_partition_name(experiment, index)}.npz"
    if not path.is_file():
        share = _load_share(experiment, index)
        right = "state_dir of the board's settings: a folder that this user may write and the worker may read"
        with refuse_unwritable(folder, right, "folder"):
            folder.mkdir(parents=True, exist_ok=True)
            sources.write_file(path, share)
    return {"file": str(path), "sha256": sources.file_sha256(path)}


def _partition_name(experiment: Experiment, index: int) -> str:
    """Return a hash of everything that determines the board's samples."""
    decides = (
        experiment.workload.task,
        experiment.data.model_dump_json(),
        len(list_boards(experiment)),
        experiment.seed,
        experiment.evaluation.by != "server",
    )
    return hashlib.sha256(repr((*decides, index)).encode()).hexdigest()[:24]


def _load_share(experiment: Experiment, index: int) -> sources.Data:
    """Load the training samples of one board in the data set's order, and its test samples if boards evaluate."""
    name = experiment.workload.task
    if name not in TASKS:
        right = "one of fedge's tasks, or data_folder in the board's settings"
        raise BadInput("workload.task", f"{name!r}, whose data set fedge does not know", right)
    root = Path(experiment.data.dir or workloads.DEFAULT_DATA_DIR).expanduser()
    data = datasets.load_dataset(TASKS[name].dataset, root, download=experiment.data.download)
    count, rng = len(list_boards(experiment)), make_generator(experiment.seed, "partition")
    labels = sources.class_labels(data.train_y)
    shares = split_data(experiment.data, labels, groups=data.groups, n_clients=count, rng=rng)
    share = shares[index]
    data = data._replace(train_x=data.train_x[share], train_y=data.train_y[share], groups=None)
    if experiment.evaluation.by == "server":
        return data
    test = split_test(shares, labels, sources.class_labels(data.test_y))[index]
    return data._replace(test_x=data.test_x[test], test_y=data.test_y[test])


@dataclass(frozen=True, slots=True, eq=False)
class BoardSession:
    """The context of one request on a real board.

    Attributes:
        recorded: Whether the board is a recorded folder instead of hardware.
    """

    experiment: Experiment
    board: FleetBoard
    here: LocalBoard
    worker: WorkerClient
    samples: int
    recorded: bool = False

    @property
    def steps(self) -> int:
        """Return the number of steps in the board's share of a round at the requested scale."""
        work = self.experiment.workload
        return count_steps(self.samples, work.batch_size, work.local_epochs)

    def build_setup(self, request: RequestMessage) -> ClientSetup:
        """Return what is known of the board before a round; needs the board's lease to measure its idle power."""
        return build_setup(
            self.experiment,
            self.board,
            self.here,
            steps=self.steps,
            samples=self.samples,
            references=request.references,
            link_mbps=request.link_mbps,
        )


def build_setup(
    experiment: Experiment,
    board: FleetBoard,
    here: LocalBoard,
    *,
    steps: int,
    samples: int,
    references: Sequence[ReferenceRows] = (),
    link_mbps: float | None = None,
) -> ClientSetup:
    """Return what is known of an opened board before a round of ``steps`` steps over ``samples`` samples.

    The board's lease is needed, because its idle power may have to be measured.

    Args:
        references: Rows of the entry's references, whose files are on the server.
        link_mbps: Measured rate of the board's link in Mbit/s; None if it is not known yet.
    """
    entry, spec = board.entry, here.board.spec
    workload, catalogued = build_workload(entry, experiment.workload), here.catalogued
    grid = build_grid(spec)
    candidates = Modes(grid.knobs[mask_candidates_and_presets(grid, spec.presets.values())])
    priors = tuple(prior.coefficients for prior in list_priors(catalogued, workload))
    tables = tuple(to_table(reference) for reference in references)
    knowledge = PriorKnowledge(spec.maxn, priors, tables, here.board.idle_w(spec.maxn))
    return ClientSetup(
        board,
        spec=spec,
        workload=workload,
        exploration=_fit_probes(experiment.exploration, here.sampler.period_s),
        candidates=candidates,
        fastest_mode=spec.maxn,
        knowledge=knowledge,
        predictor=CachedPredictor(lambda: load_predictor(experiment.predictor, knowledge)),
        steps=steps,
        samples=samples,
        link=build_link(entry.link, link_mbps),
        service=None if entry.serving is None else _expect_service(entry.serving, catalogued, workload, candidates),
        scaling=build_scaling_context(experiment, entry, catalogued, lambda: True),
    )


def _fit_probes(exploration: ExplorationSpec, period_s: float) -> ExplorationSpec:
    """Return the limits on probing with probes that are long enough for a slow sensor."""
    return exploration.model_copy(update={"probe_s": max(exploration.probe_s, SAMPLES_PER_PROBE * period_s)})


def _expect_service(spec: ServingSpec, device: DeviceSpec, workload: Workload, candidates: Modes) -> ExpectedService:
    """Return the service of an average board of the kind."""
    demand = build_demand(spec)
    return ExpectedService(
        demand,
        average_inference_costs(device, describe_service(spec), candidates),
        idle_w=mode_idle_power_w(device, workload, candidates),
        one_batch_size=True,
    )


@contextmanager
def open_session(experiment: Experiment, settings: NodeSettings) -> Iterator[BoardSession]:
    """Open a session on the board with its worker ready.

    Raises:
        BadInput: If the experiment or the settings are invalid.
    """
    board = _find_entry(experiment, settings.board)
    task = build_task_request(experiment)
    source = prepare_source(experiment, board.index, settings.state_dir / "data", settings.data_folder)
    samples = load_worker_task(settings.worker_socket, task, source)
    with (
        closing(WorkerClient(settings.worker_socket, STRETCH_LIMIT_S)) as worker,
        open_local_board(settings.place) as here,
    ):
        yield BoardSession(
            experiment, board=board, here=here, worker=worker, samples=samples, recorded=settings.root != "/"
        )


def _find_entry(experiment: Experiment, name: str) -> FleetBoard:
    named = {board.name: board for board in list_boards(experiment)}
    if name not in named:
        raise BadInput("fleet", f"a fleet without the board {name!r}", f"an entry for it; known: {', '.join(named)}")
    return named[name]


def build_task_request(experiment: Experiment) -> Mapping[str, Any]:
    """Return the task for the worker: a built-in task by name, or the user's own file with its hash."""
    name, network = experiment.workload.task, experiment.workload.network
    cut = {} if network is None or network.channels is None else {"channels": parse_json(network.channels)}
    if name in TASKS:
        return {"builtin": name, **cut}
    if not name.endswith(".py"):
        right = "one of fedge's tasks, or the path of a task file (.py), which the board's worker can load"
        raise BadInput("workload.task", repr(name), right)
    return {**read_file_task(name, _find_task_file(Path(name))), **cut}


def _find_task_file(path: Path) -> Path:
    """Find the user's task file: at the experiment's path, or on a board beside this package."""
    shipped = Path(__file__).resolve().parents[2] / path.name
    existing = next((each for each in (path, shipped) if each.is_file()), None)
    if existing is None:
        raise BadInput("workload.task", f"{path}, which is neither here nor in the run's app", "an existing task file")
    return existing
