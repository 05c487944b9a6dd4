"""Power of GPUs by NVML: against a stand-in for ``pynvml`` with its documented functions and units, on no card."""

from pathlib import Path

import pytest
from contracts.fake_nvml import FakeCard, FakeNvml, install

from fedge.clock import SimulatedClock
from fedge.devices.sensing import open_sensor
from fedge.errors import SensorLost
from fedge.powerd.machine import Machine

RAPL = "sys/class/powercap/intel-rapl:0"


def plant_rapl(root: Path, microjoules: int) -> None:
    (root / RAPL).mkdir(parents=True, exist_ok=True)
    (root / RAPL / "name").write_text("package-0\n")
    (root / RAPL / "max_energy_range_uj").write_text("1000000000000")
    (root / RAPL / "energy_uj").write_text(str(microjoules))


def test_a_card_that_counts_gives_the_mean_power_since_the_last_reading(monkeypatch, tmp_path):
    clock, card = SimulatedClock(), FakeCard()
    install(monkeypatch, FakeNvml([card], now_s=clock.now_s))
    clock.sleep_s(1.0)
    sensor = open_sensor("nvml", Machine(str(tmp_path)), clock)

    card.busy = True
    clock.sleep_s(2.0)
    sample = sensor.read()

    assert sample.rails_w == {"GPU0": pytest.approx(260.0)}
    assert sample.at_s == 2.0, "the middle of the time that it is the mean of"
    assert (sample.gpu_load, sample.gpu_mhz, sample.mem_mhz, sample.hottest_c) == (0.97, 2100, 5001, 61)


def test_a_card_that_does_not_count_gives_its_present_power(monkeypatch, tmp_path):
    install(monkeypatch, FakeNvml([FakeCard(counted_mj=None, busy=True), FakeCard(counted_mj=None)]))

    sample = open_sensor("nvml", Machine(str(tmp_path)), SimulatedClock()).read()

    assert sample.rails_w == {"GPU0": 260.0, "GPU1": 20.0}
    assert sample.total_w == 280.0


def test_the_processor_is_a_rail_where_its_counters_can_be_read(monkeypatch, tmp_path):
    clock = SimulatedClock()
    install(monkeypatch, FakeNvml([FakeCard(counted_mj=None)]))
    plant_rapl(tmp_path, 0)
    sensor = open_sensor("nvml", Machine(str(tmp_path)), clock)

    clock.sleep_s(2.0)
    plant_rapl(tmp_path, 90_000_000)

    assert sensor.total_power == "GPU0 + CPU"
    assert sensor.read().total_w == pytest.approx(20.0 + 45.0)


def test_a_reading_at_once_after_another_takes_no_power_from_so_short_a_time(monkeypatch, tmp_path):
    clock, card = SimulatedClock(), FakeCard(busy=True)
    install(monkeypatch, FakeNvml([card], now_s=clock.now_s))
    clock.sleep_s(1.0)
    sensor = open_sensor("nvml", Machine(str(tmp_path)), clock)
    clock.sleep_s(0.1)
    card.counted_mj += 5_000  # the card adds at times what has come together since the last time

    first = sensor.read()
    card.counted_mj += 5_000
    clock.sleep_s(0.001)
    again = sensor.read()
    clock.sleep_s(0.099)

    assert again == first
    assert sensor.read().total_w == pytest.approx(260.0 + 50.0, rel=1e-3)


def test_the_first_reading_has_all_rails_however_soon_it_is(monkeypatch, tmp_path):
    install(monkeypatch, FakeNvml([FakeCard(counted_mj=None)]))
    plant_rapl(tmp_path, 0)

    sample = open_sensor("nvml", Machine(str(tmp_path)), SimulatedClock()).read()

    assert sample.rails_w == {"GPU0": 20.0, "CPU": 0.0}


def test_without_a_card_there_is_no_sensor(monkeypatch, tmp_path):
    install(monkeypatch, FakeNvml([]))

    with pytest.raises(SensorLost, match="no NVIDIA GPU"):
        open_sensor("nvml", Machine(str(tmp_path)), SimulatedClock())
