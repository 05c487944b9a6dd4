"""From any state to any other: no single write is one that a kernel refuses, and the last one ends where it should."""

import pytest

pytest.importorskip("hypothesis", reason="property tests need hypothesis")

from hypothesis import example, given
from hypothesis import strategies as st

from fedge.powerd import write_plan
from fedge.powerd.write_plan import EmcFiles, EmcState, LimitFiles, LimitSpan

FILES = LimitFiles("/low", "/high")
BPMP = EmcFiles("/rate", "/rate", "/rate", "/lock", "/cap")
NANO = EmcFiles("/asked", "/asked", "/now", "/lock", "/cap")
RATES = (204_000_000, 665_600_000, 2_133_000_000, 3_199_000_000)
CAPS = (0, *RATES)

spans = st.lists(st.integers(0, 3_000_000), min_size=2, max_size=2).map(lambda pair: LimitSpan(min(pair), max(pair)))
rates = st.sampled_from(RATES)
emcs = st.builds(EmcState, rates, rates, st.booleans(), st.sampled_from(CAPS))


class SpanKernel:
    def __init__(self, span: LimitSpan) -> None:
        self.values = {FILES.low: span.low, FILES.high: span.high}

    def write(self, write: write_plan.ControlWrite) -> None:
        self.values[write.path] = write.value
        assert self.values[FILES.low] <= self.values[FILES.high], "the kernel refuses a lower limit above the upper one"
        assert self.values[write.read_path] == write.expect


@given(spans, spans)
def test_limits_are_never_crossed_and_end_as_wanted(found, wanted):
    kernel = SpanKernel(found)
    for write in write_plan.plan_limits(FILES, found, wanted):
        kernel.write(write)
    assert kernel.values == {FILES.low: wanted.low, FILES.high: wanted.high}


@given(spans)
def test_what_is_right_already_is_not_written(found):
    assert write_plan.plan_limits(FILES, found, found) == []


@given(spans, st.integers(0, 3_000_000), st.integers(1, 1_000_000))
def test_crossed_limits_are_no_target(found, high, above):
    with pytest.raises(ValueError, match="above the upper limit"):
        write_plan.plan_limits(FILES, found, LimitSpan(high + above, high))


cores = st.dictionaries(st.integers(1, 11), st.booleans(), min_size=1).map(lambda found: {0: True, **found})


@given(cores, st.integers(1, 12))
def test_the_first_cores_end_on_and_core_0_is_never_written(online, count):
    files = {core: f"/cpu{core}" for core in online}
    wanted = write_plan.select_first_cores(files, count)
    now = dict(online)
    for write in write_plan.plan_cores_on(files, online, wanted) + write_plan.plan_cores_off(files, online, wanted):
        core = int(write.path[4:])
        assert core != 0
        assert now[core] != bool(write.value)
        now[core] = bool(write.value)
    assert [core for core in sorted(now) if now[core]] == sorted(files)[:count]


class EmcKernel:
    """The memory clock: the cap binds the rate, an unlocked clock runs at the cap and takes no rate for long."""

    def __init__(self, files: EmcFiles, found: EmcState) -> None:
        self.files, self.values = files, {"/cap": found.cap_hz, "/lock": int(found.locked)}
        self.asked = found.asked_hz if files is NANO else found.rate_hz
        self.settle()

    def settle(self) -> None:
        cap = self.values["/cap"] or RATES[-1]
        now = min(self.asked, cap) if self.values["/lock"] else cap
        if self.files is BPMP:
            self.asked = now
            self.values["/rate"] = now
        else:
            self.values.update({"/asked": self.asked, "/now": now})

    def write(self, write: write_plan.ControlWrite) -> None:
        if write.path in {"/rate", "/asked"}:
            self.asked = write.value
        else:
            self.values[write.path] = write.value
        self.settle()
        assert abs(self.values[write.read_path] - write.expect) <= write.slack

    def emc(self) -> EmcState:
        return EmcState(
            self.values[self.files.now], self.values[self.files.asked], bool(self.values["/lock"]), self.values["/cap"]
        )


kinds = st.sampled_from([BPMP, NANO])


@given(kinds, emcs, rates)
def test_a_locked_memory_runs_at_its_rate_and_then_nothing_is_left_to_write(files, found, rate_hz):
    kernel = EmcKernel(files, found)
    for write in write_plan.plan_emc_lock(files, kernel.emc(), rate_hz):
        kernel.write(write)
    assert (kernel.emc().rate_hz, kernel.emc().locked) == (rate_hz, True)
    assert write_plan.plan_emc_lock(files, kernel.emc(), rate_hz) == []


@given(kinds, emcs, rates)
def test_a_capped_memory_is_not_locked(files, found, cap_hz):
    kernel = EmcKernel(files, found)
    for write in write_plan.plan_emc_cap(files, kernel.emc(), cap_hz):
        kernel.write(write)
    assert (kernel.emc().cap_hz, kernel.emc().locked) == (cap_hz, False)


@example(BPMP, EmcState(RATES[0], RATES[0], locked=True), [(False, RATES[1])])
@example(NANO, EmcState(RATES[0], RATES[0], locked=True), [(False, RATES[1])])
@given(kinds, emcs, st.lists(st.tuples(st.booleans(), rates), max_size=3))
def test_the_memory_comes_back_as_it_was_after_any_changes(files, found, changes):
    kernel = EmcKernel(files, found)
    before = kernel.emc()
    for lock, hz in changes:
        for write in (write_plan.plan_emc_lock if lock else write_plan.plan_emc_cap)(files, kernel.emc(), hz):
            kernel.write(write)
    for write in write_plan.plan_emc_restore(files, kernel.emc(), before):
        kernel.write(write)
    assert kernel.emc() == before
    assert write_plan.plan_emc_restore(files, before, before) == []
