"""jtop behind the same interface, with a stand-in for its module: data of the shape it has; made-up values."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from contracts.power_sensor import PowerSensorContract, Rig

from fedge.clock import RealClock
from fedge.devices.sensing import OpenSensor, open_sensor
from fedge.devices.sensing.jtop_sensor import JtopSensor
from fedge.errors import SensorLost
from fedge.powerd.machine import Machine

SOURCES = Path(__file__).resolve().parents[4]


def _rail(mw: int) -> dict[str, Any]:
    return {"volt": 5000, "curr": mw // 5, "power": mw, "avg": mw - 7, "online": True}


DATA: dict[str, Any] = {
    "power": {
        "rail": {"VDD_CPU_GPU_CV": _rail(1500), "VDD_SOC": _rail(1250), "NC": _rail(0)},
        "tot": {**_rail(6000), "name": "VDD_IN"},  # test_jtop_service.py: the service moves the input rail here
    },
    "temperature": {
        "cpu": {"temp": 47.5, "online": True},
        "gpu": {"temp": 46.0, "online": True},
        "cv0": {"temp": -256, "online": False},
        "PMIC": {"temp": 100.0, "online": True},
    },
    "gpu": {"ga10b": {"status": {"load": 34.5}, "freq": {"cur": 612000, "max": 918000, "min": 306000}}},
    "cpu": {
        "total": {"idle": 90.0},
        "cpu": [
            {"online": True, "freq": {"cur": 729600}},
            {"online": True, "freq": {"cur": 1984000}},
            {"online": False},
        ],
    },
    "memory": {"RAM": {"tot": 16_000_000}, "EMC": {"cur": 2133000, "max": 3199000}},
}


class FakeClient:
    """jtop's client: it calls back with itself when data came."""

    made: list[FakeClient]

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.data = copy.deepcopy(DATA)
        self.closed = 0
        self.callback: Callable[[FakeClient], None] | None = None
        self.made.append(self)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError as error:
            raise AttributeError(name) from error

    def attach(self, callback: Callable[[FakeClient], None]) -> None:
        self.callback = callback

    def start(self) -> None:
        self.emit()

    def emit(self) -> None:
        self.callback(self)

    def close(self) -> None:
        self.closed += 1


class DeadClient(FakeClient):
    def start(self) -> None:
        raise RuntimeError("The jtop.service is not active")


class PoorClient(FakeClient):
    def start(self) -> None:
        del self.data["gpu"]
        self.emit()


def _install(monkeypatch: pytest.MonkeyPatch, client: type[FakeClient]) -> None:
    module = ModuleType("jtop")
    module.jtop = client
    client.made = []
    monkeypatch.setitem(sys.modules, "jtop", module)


class JtopRig(Rig):
    def __init__(self) -> None:
        self.sensor = self.again(None)
        self.client = FakeClient.made[0]

    def again(self, total_power: str | None) -> OpenSensor:
        return JtopSensor(Machine(), RealClock(), total_power)

    def lose(self) -> None:
        self.client.data["power"]["tot"]["online"] = False
        self.client.emit()

    def mend(self) -> None:
        self.client.data["power"]["tot"]["online"] = True
        self.client.emit()


class TestJtopSensor(PowerSensorContract):
    @pytest.fixture
    def rig(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
        _install(monkeypatch, FakeClient)
        rig = JtopRig()
        yield rig
        rig.sensor.close()


def test_older_versions_give_plain_temperatures(monkeypatch):
    _install(monkeypatch, FakeClient)
    sensor = JtopSensor(Machine(), RealClock())
    FakeClient.made[0].data["temperature"] = {"CPU": 41.5, "PMIC": 100.0, "iwlwifi": -256}
    FakeClient.made[0].emit()

    assert sensor.read().temperatures_c == {"CPU": 41.5}


def test_the_memorys_load_is_there_where_the_service_can_read_it(monkeypatch):
    _install(monkeypatch, FakeClient)
    sensor = JtopSensor(Machine(), RealClock())
    unread = sensor.read().mem_load
    FakeClient.made[0].data["memory"]["EMC"]["val"] = 37
    FakeClient.made[0].emit()

    assert (unread, sensor.read().mem_load) == (None, 0.37)


def test_it_asks_for_no_interval_below_the_services_least(monkeypatch):
    _install(monkeypatch, FakeClient)
    sensor = JtopSensor(Machine(), RealClock(), interval_s=0.1)

    assert (FakeClient.made[0].interval, sensor.interval_s) == (0.5, 0.5)


def test_without_jetson_stats_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jtop", None)

    with pytest.raises(SensorLost, match=r"jtop cannot be imported .*fedge\[jetson\].*or choose sysfs"):
        open_sensor("jtop", Machine(), RealClock())


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (DeadClient, "The jtop.service is not active; check the service"),
        (PoorClient, r"its data has a form that is not known \(AttributeError"),
    ],
)
def test_a_service_that_does_not_answer_well_is_refused_and_left(monkeypatch, client, message):
    _install(monkeypatch, client)

    with pytest.raises(SensorLost, match=message):
        JtopSensor(Machine(), RealClock())
    assert client.made[0].closed == 1


def test_no_source_of_the_project_imports_jtop_when_it_is_loaded():
    imports = [
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for package in ("fedge", "clients", "server", "experiments")
        for path in (SOURCES / package).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith(("import jtop", "from jtop "))
    ]

    assert imports == []
    assert "jtop" not in sys.modules
