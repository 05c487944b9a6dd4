"""The most memory that a process held: read as the kernel tells it, forgotten on request, never told too high."""

import pytest

from fedge.worker import job_runner
from fedge.worker.job_runner import PeakMemoryMeter


class Kernel:
    """Tells a high-water mark; one that ``forgets`` falls back to what is held now."""

    def __init__(self, forgets):
        self.forgets, self.now_kb, self.high_kb = forgets, 1000, 1000

    def hold(self, kb):
        self.now_kb, self.high_kb = kb, max(kb, self.high_kb)

    def status(self):
        return f"Name:\tx\nVmHWM:\t {self.high_kb} kB\nVmRSS:\t {self.now_kb} kB\n"

    def clear(self):
        if self.forgets:
            self.high_kb = self.now_kb


def meter(kernel):
    return PeakMemoryMeter(kernel.status, kernel.clear)


def test_a_peak_shows_until_it_is_forgotten():
    kernel = Kernel(forgets=True)
    found = meter(kernel)
    found.reset()
    kernel.hold(5000)
    kernel.hold(2000)
    assert found.peak_mb() == pytest.approx(5.12)
    found.reset()
    kernel.hold(3000)
    assert found.peak_mb() == pytest.approx(3.072)


def test_where_the_kernel_does_not_forget_a_smaller_peak_is_not_known():
    kernel = Kernel(forgets=False)
    found = meter(kernel)
    kernel.hold(5000)
    kernel.hold(2000)
    found.reset()
    kernel.hold(3000)
    assert found.peak_mb() is None
    kernel.hold(6000)
    assert found.peak_mb() == pytest.approx(6.144)


@pytest.mark.parametrize("status", ["", "VmHWM: many kB", "VmRSS:\t 3 kB\n"])
def test_a_kernel_that_tells_nothing_leaves_it_open(status):
    found = PeakMemoryMeter(lambda: status, lambda: None)
    found.reset()
    assert found.peak_mb() is None


def test_this_very_process_can_be_asked():
    found = PeakMemoryMeter()
    found.reset()
    held_mb = found.peak_mb()
    assert held_mb is None or held_mb > 1
    assert (
        job_runner.parse_high_water_kb(job_runner.read_status()) is None
        or job_runner.parse_high_water_kb(job_runner.read_status()) > 1000
    )
