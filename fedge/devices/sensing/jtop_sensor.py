"""jetson-stats (jtop) as a power sensor; optional because of its AGPL licence, so nothing else depends on it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

from fedge.devices.sensing import choose_total_formula, require_total_w
from fedge.devices.sensing.sampler import FIRST_SAMPLE_LIMIT_S, LatestSample
from fedge.devices.sensing.sysfs_sensor import keep_plausible_temperatures
from fedge.errors import SensorLost
from fedge.powerd.machine import Machine
from fedge.protocols import Clock
from fedge.types import SensorSample

MIN_INTERVAL_S = 0.5
"""Shortest interval in seconds; below it the service becomes unstable, and its own exporter rejects less."""
INSTALL_HINT = (
    "install it with pip install 'fedge[jetson]', in the version of the board's jtop service, or choose sysfs"
)
SERVICE_HINT = (
    "check the service (systemctl status jtop), that this user is in the group jtop, and that both have one version; "
    "or choose sysfs"
)


class JtopSensor:
    """A ``PowerSensor`` that uses the jtop service; a sample's time is when the service's data arrived.

    The first client of the service sets its interval for all clients. jtop has no over-current counters.

    Args:
        interval_s: Seconds between samples, at least ``MIN_INTERVAL_S``.

    Raises:
        SensorLost: jtop is not installed, its service does not run, or it has no power.
    """

    def __init__(
        self, machine: Machine, clock: Clock, total_power: str | None = None, interval_s: float = MIN_INTERVAL_S
    ) -> None:
        self._clock, self._wanted = clock, total_power
        self.interval_s = max(interval_s, MIN_INTERVAL_S)
        self._arrival = LatestSample("jtop", clock, self.interval_s)
        self._total: str | None = None
        try:
            self._client = importlib.import_module("jtop").jtop(interval=self.interval_s)
        except ImportError as error:
            raise SensorLost(f"jtop cannot be imported ({error}); {INSTALL_HINT}") from error
        try:
            self._client.attach(self._process_data)
            self._client.start()
            self.read()
        except Exception as error:  # JtopException cannot be named, since jtop is imported lazily
            self.close()
            raise error if isinstance(error, SensorLost) else SensorLost(f"jtop: {error}; {SERVICE_HINT}") from error

    @property
    def total_power(self) -> str:
        return self._total or ""

    def read(self) -> SensorSample:
        """Return the newest sample.

        Raises:
            SensorLost: The service has ended or has no power.
        """
        return self._arrival.wait_for_sample(FIRST_SAMPLE_LIMIT_S + self.interval_s)

    def read_next(self, after_s: float | None) -> SensorSample:
        """Wait for a sample that is newer than ``after_s`` and return it.

        Raises:
            SensorLost: As ``read``, or no such sample came in time.
        """
        return self._arrival.wait_for_sample(FIRST_SAMPLE_LIMIT_S + self.interval_s, after_s)

    def close(self) -> None:
        """Disconnect from the service."""
        self._client.close()

    def _process_data(self, data: Any) -> None:
        """Store new data; called in a thread of jtop."""
        try:
            rails_w = _parse_rails_w(data.power)
            self._total = self._total or choose_total_formula(rails_w, self._wanted, "jtop knows no rail of this board")
            self._arrival.put(_build_sample(self._clock.now_s(), data, rails_w, self._total))
        except SensorLost as lost:
            self._arrival.fail(str(lost))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._arrival.fail(f"its data has a form that is not known ({error!r}); choose sysfs")


def _build_sample(at_s: float, data: Any, rails_w: Mapping[str, float], total: str) -> SensorSample:
    gpu: Mapping[str, Any] = next(iter(data.gpu.values()), {})
    memory = data.memory.get("EMC", {})
    return SensorSample(
        at_s=at_s,
        total_w=require_total_w(total, rails_w, "it"),
        rails_w=rails_w,
        temperatures_c=_parse_temperatures_c(data.temperature),
        gpu_load=_parse_share(gpu, "status", "load"),
        cpu_mhz=max((mhz for core in data.cpu["cpu"] if (mhz := _parse_mhz(core)) is not None), default=None),
        gpu_mhz=_parse_mhz(gpu),
        mem_mhz=_parse_mhz({"freq": memory}),
        mem_load=_parse_share(memory, "val"),
    )


def _parse_rails_w(power: Mapping[str, Any]) -> dict[str, float]:
    """Return power in watts by rail, for rails that are on; jtop reports milliwatts.

    The input rail, where a board has one, is jtop's total and no longer among its rails.
    """
    rails, total = dict(power["rail"]), power.get("tot", {})
    if "name" in total:
        rails[total["name"]] = total
    return {
        name: float(rail["power"]) / 1e3 for name, rail in rails.items() if rail.get("online", True) and name != "NC"
    }


def _parse_temperatures_c(reported: Mapping[str, Any]) -> dict[str, float]:
    """Return temperatures in degrees Celsius; newer versions wrap the number and tell whether the sensor is on."""
    wrapped = {name: at if isinstance(at, Mapping) else {"temp": at} for name, at in reported.items()}
    return keep_plausible_temperatures(
        {name: float(at["temp"]) for name, at in wrapped.items() if at.get("online", True)}
    )


def _parse_mhz(engine: Mapping[str, Any]) -> float | None:
    """Return an engine's present clock in MHz; jtop reports kHz."""
    khz = _find_number(engine, "freq", "cur")
    return None if khz is None else khz / 1e3


def _parse_share(engine: Any, *keys: str) -> float | None:
    """Return a load from 0 to 1; jtop reports percent."""
    percent = _find_number(engine, *keys)
    return None if percent is None else percent / 100


def _find_number(value: Any, *keys: str) -> float | None:
    """Return a number in a nested mapping, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
