"""A Jetson as the ground of a rig: modes and clocks through the power daemon, power from the board's own sensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedge.characterisation.here.ground import Metered
from fedge.characterisation.point import Point
from fedge.characterisation.seen import Strip
from fedge.devices.here import Here, Place, board_here, describe, identity_in, spec_of
from fedge.devices.jetson import SAME, Lease
from fedge.devices.own_spec import mode_to_wire, own_spec
from fedge.errors import BoardError, SensorLost
from fedge.powerd.client import Client, PowerdError
from fedge.types import DeviceSpec, PowerMode, Sample

LOCK_MIN = "lock-min"
"""What the daemon must be allowed beside modes, so that clocks do not fall below the mode's."""


class Jetson:
    """A board with a power daemon. Raises ``BoardError`` when that does not answer."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._described: Mapping[str, Any] = describe(place)
        self._identity = identity_in(self._described)
        catalogued = spec_of(place, self._identity, self._described)
        self.spec: DeviceSpec = own_spec(catalogued, self._described, catalogued.total_power)

    @property
    def title(self) -> str:
        """The board's name in the catalogue."""
        return self.spec.title

    @property
    def maxn(self) -> PowerMode | None:
        """Every knob at the top of what the daemon allows."""
        return self.spec.maxn

    @property
    def meter(self) -> str | None:
        """Which rails the watts are of."""
        return f"{self._place.sensor}: {self.spec.total_power}"

    @property
    def software(self) -> dict[str, str]:
        """The board and its L4T."""
        return {"machine": self.spec.name, "l4t": self._identity.l4t}

    def refuses(self, point: Point) -> str | None:
        """A mode that the board does not have, and pinned clocks where the daemon may not pin them."""
        if point.mode is not None:
            allowed = self._described["allowed"]
            for knob, value in mode_to_wire(point.mode, self._described["knobs"]).items():
                if value not in allowed[knob]:
                    return f"mode {point.mode}: this board has no {knob} {value}; it has {_some(allowed[knob])}"
        if not point.dvfs and LOCK_MIN not in self._described["extras"]:
            return (
                f'dvfs: false needs "{LOCK_MIN}" among "extras" in the power daemon\'s file (docs/powerd.md); '
                "add it and restart fedge-powerd, or set dvfs: true"
            )
        return None

    @contextmanager
    def held(self, point: Point) -> Iterator[JetsonHeld]:
        """The board for this point alone, sampled."""
        with (
            board_here(self._place) as here,
            closing(Client(self._place.power_socket)) as power,
            Lease(lambda: Client(self._place.power_socket), self._place.holder) as lease,
        ):
            wished = self._set(point, power, lease.token)
            here.sampler.mode_changed()
            yield JetsonHeld(here, power, wished)

    def _set(self, point: Point, power: Client, token: str) -> dict[str, int]:
        """The knobs as they should stay, in the daemon's units."""
        try:
            now: dict[str, int] = power.get()["mode"]
            wished = now if point.mode is None else mode_to_wire(point.mode, self._described["knobs"])
            if point.mode is not None or not point.dvfs:
                power.set_mode(wished, token=token, lock_min=not point.dvfs)
        except PowerdError as error:
            raise BoardError(f"the power mode could not be set: {error}") from error
        return wished


@dataclass(slots=True)
class JetsonHeld:
    """A board during a point."""

    here: Here
    power: Client
    wished: Mapping[str, int]
    lost: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was lost, and whether the board is still in its mode."""
        return (*self.lost, *self._left())

    def metered(self, start_s: float, end_s: float) -> Metered:
        """By the board's sampler, the trapezoid rule over its samples."""
        try:
            energy = self.here.sampler.window(start_s, end_s)
        except SensorLost as error:
            self.lost += (f"power was lost: {error}",)
            return Metered()
        loads = [one.gpu_load for one in self.here.sampler.samples(start_s, end_s) if one.gpu_load is not None]
        return Metered(energy.energy_j, sum(loads) / len(loads) if loads else None, energy.peak_c, energy.throttled)

    def completed(self, strip: Strip, begun_s: float) -> Strip:
        """With watts, GPU load and the hottest sensor, each from the sample nearest in time."""
        if not len(strip.at_s):
            return strip
        samples = self.here.sampler.samples(begun_s, begun_s + float(strip.at_s[-1]))
        if not samples:
            return strip
        at_s = np.array([one.at_s for one in samples])
        nearest = [samples[int(np.abs(at_s - begun_s - at).argmin())] for at in strip.at_s]
        return replace(
            strip,
            gpu_load=np.array([_or_nan(one.gpu_load) for one in nearest]),
            power_w=np.array([one.total_w for one in nearest]),
            temperature_c=np.array([_or_nan(_hottest(one)) for one in nearest]),
        )

    def _left(self) -> tuple[str, ...]:
        try:
            now = self.power.get()
        except PowerdError as error:
            return (f"whether the mode was held is not known: {error}",)
        if all(abs(now["mode"].get(knob, value) - value) <= SAME * value for knob, value in self.wished.items()):
            return ()
        return (
            f"the board left its mode: it is now at {now['mode']}; {now.get('stopped') or 'something else set it'}",
        )


def _hottest(sample: Sample) -> float | None:
    return sample.hottest_c


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _some(values: list[int]) -> str:
    head = ", ".join(map(str, values[:12]))
    return head if len(values) <= 12 else f"{head}, ... up to {values[-1]}"
