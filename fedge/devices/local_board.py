"""The board that this program runs on: its settings, and power daemon, sensors and spec, opened and closed together."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedge.clock import RealClock
from fedge.devices import catalogue
from fedge.devices.board_spec import HZ_PER_MHZ, BoardIdentity, build_board_spec, match_board_spec
from fedge.devices.gpu_workstation import (
    GPU_KNOB,
    build_workstation_spec,
    open_power_limits,
)
from fedge.devices.jetson_board import IdlePowerStore, JetsonBoard
from fedge.devices.sensing import open_sensor
from fedge.devices.sensing.nvml_sensor import NvmlSensor
from fedge.devices.sensing.sampler import Sampler
from fedge.errors import BadInput, BoardError, SensorLost
from fedge.powerd.machine import Machine
from fedge.powerd.powerd_client import SOCKET, PowerdClient, PowerdError
from fedge.powerd.powerd_client import SOCKET as POWER_SOCKET
from fedge.protocols import Clock, PowerSensor
from fedge.types import DeviceSpec
from fedge.worker.worker_client import SOCKET as WORKER_SOCKET
from fedge.yaml_files import read_yaml, validate_fields

logger = logging.getLogger(__name__)
STATE_DIR = Path("/var/lib/fedge/node")
"""Default folder of what a board keeps."""


@dataclass(frozen=True, slots=True)
class BoardLocation:
    """Location of a board's daemon, files and sensors.

    Attributes:
        device: Name or YAML file of the catalogue entry; None identifies the board automatically; ``gpu-workstation``
            is this machine's NVIDIA GPUs, without a daemon.
        root: Root of the board's file system; another one for a recorded board.
        state_dir: Folder for measured idle power; None keeps it in memory.
    """

    device: str | None = None
    power_socket: str = SOCKET
    root: str = "/"
    sensor: str = "sysfs"
    sample_hz: float = 10.0
    state_dir: Path | None = None
    holder: str = "fedge"


@dataclass(frozen=True, slots=True, eq=False)
class LocalBoard:
    """An opened board."""

    board: JetsonBoard
    sensor: PowerSensor
    sampler: Sampler
    identity: BoardIdentity
    catalogued: DeviceSpec

    def hottest_c(self) -> float | None:
        """Return the highest temperature now, or None if there is no sensor or it cannot be read."""
        try:
            return self.sensor.read().hottest_c
        except SensorLost as error:
            logger.warning("the temperature is not known: %s", error)
            return None


@contextmanager
def open_local_board(place: BoardLocation) -> Iterator[LocalBoard]:
    """Open a board with its sampler running.

    Raises:
        BoardError: The daemon does not answer, or the catalogue does not contain the board.
        SensorLost: The board's power cannot be read.
        BadInput: The sensor or device is unknown.
    """
    clock = RealClock()
    if place.device == catalogue.GPU_WORKSTATION:
        with _open_gpus(place, clock) as opened:
            yield opened
        return
    described = describe_board(place)
    identity = parse_identity(described)
    catalogued = find_board_spec(place, identity, described)
    with (
        closing(open_sensor(place.sensor, Machine(place.root), clock, catalogued.total_power)) as sensor,
        Sampler(sensor, clock, place.sample_hz) as sampler,
        closing(PowerdClient(place.power_socket)) as power,
    ):
        board = JetsonBoard(
            build_board_spec(catalogued, described, sensor.total_power),
            knobs=described["knobs"],
            power=power,
            connect=lambda: PowerdClient(place.power_socket),
            meter=sampler,
            clock=clock,
            idle=_open_idle_store(place, sensor),
            holder=place.holder,
        )
        yield LocalBoard(board, sensor=sensor, sampler=sampler, identity=identity, catalogued=catalogued)


@contextmanager
def _open_gpus(place: BoardLocation, clock: Clock) -> Iterator[LocalBoard]:
    limits, machine = open_power_limits(place.state_dir or STATE_DIR), Machine(place.root)
    with closing(NvmlSensor(machine, clock)) as sensor, Sampler(sensor, clock, place.sample_hz) as sampler:
        spec = build_workstation_spec(limits, sensor, machine)
        board = JetsonBoard(
            spec,
            knobs={GPU_KNOB: [level.clock_hz for level in limits.levels]},
            power=limits,
            connect=lambda: limits,
            meter=sampler,
            clock=clock,
            idle=_open_idle_store(place, sensor),
            holder=place.holder,
        )
        identity = BoardIdentity(spec.title, (), "")
        yield LocalBoard(board, sensor=sensor, sampler=sampler, identity=identity, catalogued=spec)


def _open_idle_store(place: BoardLocation, sensor: PowerSensor) -> IdlePowerStore:
    path = place.state_dir / "idle.json" if place.state_dir else None
    return IdlePowerStore(path, name_meter(sensor, place.sensor))


def name_meter(sensor: PowerSensor, configured: str) -> str:
    """Return the name under which a board's idle power is kept: the sensor that ``auto`` chose, and the total."""
    return f"{getattr(sensor, 'name', configured)}: {sensor.total_power}"


def describe_board(place: BoardLocation) -> Mapping[str, Any]:
    """Return the power daemon's description of the board."""
    try:
        with closing(PowerdClient(place.power_socket)) as power:
            described: Mapping[str, Any] = power.describe()
    except PowerdError as error:
        raise BoardError(f"the power daemon does not describe the board: {error}") from error
    return described


def parse_identity(described: Mapping[str, Any]) -> BoardIdentity:
    """Extract the board's identity from the daemon's description."""
    said = described["board"]
    return BoardIdentity(said["model"], tuple(said["compatible"]), said["l4t"])


def find_board_spec(place: BoardLocation, identity: BoardIdentity, described: Mapping[str, Any]) -> DeviceSpec:
    """Return the catalogue's entry of a board: the one named in ``place``, or the one of its module."""
    if place.device is not None:
        return catalogue.find(place.device, where="device")
    clocks = [hz / HZ_PER_MHZ for hz in described["knobs"]["gpu_hz"]]
    return match_board_spec(identity, clocks, catalogue.load_catalogue())


# The board's settings file --------------------------------------------------------------------------------------------


SETTINGS_PATH = Path("/etc/fedge/node.yaml")
"""Default path of the settings file on a board."""


EXPECTED_SETTINGS = "a board's settings: at least 'board: NAME' (docs/how-to/boards.md)"


class TelemetrySettings(BaseModel):
    """Destination of a board's telemetry, its credentials, and how much is buffered while the server is unreachable.

    Attributes:
        url: HTTPS address of the server, such as ``https://fleet.example:9443/telemetry``.
        ca: Certificate of the only accepted certificate authority of the server.
        certificate: The board's own certificate, which identifies it.
        key: Private key of this certificate.
        spool_dir: Folder that buffers what the server has not acknowledged.
        spool_mb: Largest size of this buffer, in MB; the oldest samples are dropped.
        spool_age_s: Age above which buffered samples are dropped.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(pattern=r"^https://[^/\s?#@]+(/[^\s?#]*)?$")]
    ca: Path
    certificate: Path
    key: Path
    spool_dir: Path = Path("/var/lib/fedge/telemetry")
    spool_mb: Annotated[float, Field(gt=0, le=100_000)] = 64.0
    spool_age_s: Annotated[float, Field(gt=0)] = 7 * 86400.0


class NodeSettings(BaseModel):
    """Settings of a board.

    Attributes:
        board: Name of the board in the experiment's fleet.
        device: Name or YAML file of the catalogue entry; None identifies the board automatically;
            ``gpu-workstation`` is this machine's NVIDIA GPUs.
        power_socket: Socket of the power daemon.
        worker_socket: Socket of the worker.
        state_dir: Folder of the client's own state: claims, history, progress.
        data_folder: Folder with the board's own samples, readable by the worker; None for a partition of the
            experiment's data set.
        sensor: Source of power and temperatures: ``auto``, ``sysfs`` or ``jtop``.
        sample_hz: Readings of the sensors per second.
        root: Root of the board's file system; another one for a recorded board.
        telemetry: Telemetry settings; None sends nothing between replies.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    board: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    device: str | None = None
    power_socket: str = POWER_SOCKET
    worker_socket: str = WORKER_SOCKET
    state_dir: Path = STATE_DIR
    data_folder: str | None = None
    sensor: str = "auto"
    sample_hz: Annotated[float, Field(ge=1, le=20)] = 10.0
    root: str = "/"
    telemetry: TelemetrySettings | None = None

    @property
    def live_dir(self) -> Path:
        """Folder of the board's progress files."""
        return self.state_dir / "live"

    @property
    def place(self) -> BoardLocation:
        """Location of the board's daemon, files and sensors."""
        return BoardLocation(
            self.device,
            power_socket=self.power_socket,
            root=self.root,
            sensor=self.sensor,
            sample_hz=self.sample_hz,
            state_dir=self.state_dir,
            holder=f"run on {self.board}",
        )


def read_settings(path: Path = SETTINGS_PATH) -> NodeSettings:
    """Read the settings file.

    Raises:
        BadInput: The file is missing or invalid; names the field.
    """
    if not path.exists():
        raise BadInput(str(path), "no such file", EXPECTED_SETTINGS)
    content = read_yaml(path)
    if not isinstance(content, dict) or "board" not in content:
        raise BadInput(str(path), "a file that does not name the board", EXPECTED_SETTINGS)
    return validate_fields(NodeSettings, content, str(path))


def load_local_settings(path: Path | None = None) -> NodeSettings:
    """Load settings from ``path``, from the default path if it exists, or use the defaults."""
    settings_path = path or (SETTINGS_PATH if SETTINGS_PATH.exists() else None)
    return read_settings(settings_path) if settings_path else NodeSettings(board="here")


def read_processor_name(root: Path) -> str:
    """Return the name of this machine's processor, or its architecture if /proc does not name it."""
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return " ".join(line.partition(":")[2].split())
    return platform.machine()
