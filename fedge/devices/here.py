"""The board that this program runs on, put together: its daemon, its sensors, its own spec; closed at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge.clock import RealClock
from fedge.devices import catalogue
from fedge.devices.identity import Identity, spec_for
from fedge.devices.idling import IdleBook
from fedge.devices.jetson import JetsonBoard
from fedge.devices.own_spec import HZ_PER_MHZ, own_spec
from fedge.devices.sensing import sensor_for
from fedge.devices.sensing.sampler import Sampler
from fedge.errors import BoardError, SensorLost
from fedge.interfaces import Clock, PowerSensor
from fedge.powerd.client import SOCKET, Client, PowerdError
from fedge.powerd.machine import Machine
from fedge.types import DeviceSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a board's daemon, files and sensors are; ``device`` names its catalogue entry where it must be told."""

    device: str | None = None
    power_socket: str = SOCKET
    root: str = "/"
    sensor: str = "sysfs"
    sample_hz: float = 10.0
    state_dir: Path | None = None
    """Where what was measured at rest is remembered; None: nowhere."""
    holder: str = "fedge"
    """The name that others are told while this program holds the board."""


@dataclass(frozen=True, slots=True, eq=False)
class Here:
    """A board as found: the device, its sensor and sampler, who it is, and the catalogue's entry of its kind."""

    board: JetsonBoard
    sensor: PowerSensor
    sampler: Sampler
    identity: Identity
    catalogued: DeviceSpec

    def hottest_c(self) -> float | None:
        """The hottest sensor now; None where there is none, or when it cannot be read: no work is lost over it."""
        try:
            return self.sensor.read().hottest_c
        except SensorLost as error:
            logger.warning("the temperature is not known: %s", error)
            return None


@contextmanager
def board_here(place: Place, clock: Clock | None = None) -> Iterator[Here]:
    """The board of ``place``, its sampler running.

    Raises ``BoardError`` for a daemon that does not answer and for a board that nobody knows, ``SensorLost`` for one
    whose power cannot be read, ``BadInput`` for a sensor or device of no known name.
    """
    clock = clock or RealClock()
    described = describe(place)
    identity = identity_in(described)
    catalogued = spec_of(place, identity, described)
    with (
        closing(sensor_for(place.sensor, Machine(place.root), clock, catalogued.total_power)) as sensor,
        Sampler(sensor, clock, place.sample_hz) as sampler,
        closing(Client(place.power_socket)) as power,
    ):
        board = JetsonBoard(
            own_spec(catalogued, described, sensor.total_power),
            described["knobs"],
            power,
            lambda: Client(place.power_socket),
            sampler,
            clock,
            idle=IdleBook(
                place.state_dir / "idle.json" if place.state_dir else None, f"{place.sensor}: {sensor.total_power}"
            ),
            holder=place.holder,
        )
        yield Here(board, sensor, sampler, identity, catalogued)


def describe(place: Place) -> Mapping[str, Any]:
    """What the power daemon says of the board; raises ``BoardError`` when it does not answer."""
    try:
        with closing(Client(place.power_socket)) as power:
            described: Mapping[str, Any] = power.describe()
    except PowerdError as error:
        raise BoardError(f"the power daemon does not describe the board: {error}") from error
    return described


def identity_in(described: Mapping[str, Any]) -> Identity:
    """Who the board is."""
    said = described["board"]
    return Identity(said["model"], tuple(said["compatible"]), said["l4t"])


def spec_of(place: Place, identity: Identity, described: Mapping[str, Any]) -> DeviceSpec:
    """The catalogue's entry of the board: the one that is named, or that of its module."""
    if place.device is not None:
        return catalogue.find(place.device, where="device")
    clocks = [hz / HZ_PER_MHZ for hz in described["knobs"]["gpu_hz"]]
    return spec_for(identity, clocks, catalogue.load_catalogue())
