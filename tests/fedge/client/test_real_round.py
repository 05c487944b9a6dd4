"""A device that notes what it measured is otherwise the device behind it."""

from __future__ import annotations

from contracts.rounds import LOW, MAXN, WORK, ExactDevice

from fedge.client.real_round import RecordingDevice


def test_it_passes_everything_on_and_remembers_what_was_measured() -> None:
    device = ExactDevice()
    noting = RecordingDevice(device)
    with noting.use_mode(LOW):
        first = noting.measure(WORK, 3, lambda _: None)
    second = noting.measure(WORK, 5, lambda _: None, limit_s=2.5)

    assert (noting.spec, noting.idle_w(MAXN)) == (device.spec, device.idle_w(MAXN))
    assert noting.measured == device.measured == [first, second]
    assert (first.mode, second.steps) == (LOW, 2)


def test_it_works_no_longer_than_it_may() -> None:
    left_s = [2.5, None, 2.5]
    noting = RecordingDevice(ExactDevice(), lambda: left_s.pop(0))

    done = [noting.measure(WORK, 5, lambda _: None, limit_s).steps for limit_s in (None, None, 1.5)]

    assert done == [2, 5, 1]
