"""The board that this program runs on: power daemon, sensors and spec, opened together and closed at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge.clock import RealClock
from fedge.devices import catalogue
from fedge.devices.board_identity import BoardIdentity, match_board_spec
from fedge.devices.board_spec import HZ_PER_MHZ, build_board_spec
from fedge.devices.gpu_workstation import (
    GPU_KNOB,
    build_workstation_spec,
    open_power_limits,
)
from fedge.devices.idle_power import IdlePowerStore
from fedge.devices.jetson_board import JetsonBoard
from fedge.devices.sensing import open_sensor
from fedge.devices.sensing.nvml_sensor import NvmlSensor
from fedge.devices.sensing.sampler import Sampler
from fedge.errors import BoardError, SensorLost
from fedge.powerd.machine import Machine
from fedge.powerd.powerd_client import SOCKET, PowerdClient, PowerdError
from fedge.protocols import Clock, PowerSensor
from fedge.types import DeviceSpec

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
    """An opened board.

    Attributes:
        catalogued: The catalogue's entry of the board.
    """

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
def open_local_board(place: BoardLocation, clock: Clock | None = None) -> Iterator[LocalBoard]:
    """Open a board with its sampler running.

    Raises:
        BoardError: The daemon does not answer, or the catalogue does not contain the board.
        SensorLost: The board's power cannot be read.
        BadInput: The sensor or device is unknown.
    """
    clock = clock or RealClock()
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
            idle=IdlePowerStore(
                place.state_dir / "idle.json" if place.state_dir else None,
                name_meter(sensor, place.sensor),
            ),
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
            idle=IdlePowerStore(
                place.state_dir / "idle.json" if place.state_dir else None, name_meter(sensor, sensor.name)
            ),
            holder=place.holder,
        )
        yield LocalBoard(
            board, sensor=sensor, sampler=sampler, identity=BoardIdentity(spec.title, (), ""), catalogued=spec
        )


def name_meter(sensor: PowerSensor, configured: str) -> str:
    """Return the name under which a board's idle power is kept: the sensor that ``auto`` chose, and the total."""
    return f"{getattr(sensor, 'name', configured)}: {sensor.total_power}"


def describe_board(place: BoardLocation) -> Mapping[str, Any]:
    """Return the power daemon's description of the board.

    Raises:
        BoardError: The daemon does not answer.
    """
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
