"""Plans single writes from the found to the wanted state, in an order that no kernel refuses; pure functions."""

from typing import Dict, List, NamedTuple

SLACK_HZ = 999
"""Newer kernels keep devfreq limits in kHz, so a value may read back this much lower or higher."""
EMC_SLACK_HZ = 500000
"""Memory rates come from a divider. Tolerance far below the closest pair in any table (3199 and 3200 MHz)."""


class ControlWrite(NamedTuple):
    """One write to a control file, and its verification."""

    path: str
    value: int
    read_path: str
    expect: int
    slack: int = 0


class LimitSpan(NamedTuple):
    """A lower and an upper limit, in the unit of their files."""

    low: int
    high: int


class LimitFiles(NamedTuple):
    """Control files of a pair of limits, and the permitted difference when read back."""

    low: str
    high: str
    slack: int = 0


def plan_write(path: str, value: int, slack: int = 0) -> ControlWrite:
    """Return a write that is read back from the same file."""
    return ControlWrite(path, value=value, read_path=path, expect=value, slack=slack)


def plan_limits(files: LimitFiles, found: LimitSpan, wanted: LimitSpan) -> List[ControlWrite]:
    """Return the writes that change a pair of limits; a limit that is already right is not written.

    The kernel refuses a lower limit above the upper one at every single write: going up the upper limit goes first,
    going down the lower one does.

    Raises:
        ValueError: The wanted lower limit is above the upper one.
    """
    if wanted.low > wanted.high:
        raise ValueError(f"got a lower limit of {wanted.low} above the upper limit of {wanted.high}")
    high = [plan_write(files.high, wanted.high, files.slack)] if abs(found.high - wanted.high) > files.slack else []
    low = [plan_write(files.low, wanted.low, files.slack)] if abs(found.low - wanted.low) > files.slack else []
    return high + low if wanted.high >= found.high else low + high


def plan_cores_on(files: Dict[int, str], online: Dict[int, bool], wanted: Dict[int, bool]) -> List[ControlWrite]:
    """Return the writes that switch wanted cores on, lowest first; maps are by core number."""
    return [plan_write(files[core], 1) for core in sorted(files) if wanted.get(core) and not online.get(core)]


def plan_cores_off(files: Dict[int, str], online: Dict[int, bool], wanted: Dict[int, bool]) -> List[ControlWrite]:
    """Return the writes that switch unwanted cores off, highest first; never core 0, nor a core that is not named."""
    off = [core for core in sorted(files, reverse=True) if core and online.get(core) and not wanted.get(core, True)]
    return [plan_write(files[core], 0) for core in off]


def select_first_cores(files: Dict[int, str], count: int) -> Dict[int, bool]:
    """Return the first ``count`` cores as on, the others as off."""
    return {core: rank < count for rank, core in enumerate(sorted(files))}


class EmcFiles(NamedTuple):
    """Control files of the memory clock, "" for a missing one. With the BPMP rate, asked and now are one file.

    Attributes:
        rate: Takes a rate; the Nano's override clock takes it before it is switched on.
        asked: Shows the requested rate at once.
        now: Shows the rate in effect while ``lock`` is 1.
        lock: Holds the rate.
        cap: Takes an upper limit; 0 is none.
    """

    rate: str = ""
    asked: str = ""
    now: str = ""
    lock: str = ""
    cap: str = ""

    @property
    def lock_first(self) -> bool:
        """Whether to lock before setting a rate.

        If only the real rate can be read back, it must be locked, since the kernel would change it at will.
        """
        return self.asked == self.now


class EmcState(NamedTuple):
    """The memory clock as found: 0 for a missing rate or cap."""

    rate_hz: int = 0
    asked_hz: int = 0
    locked: bool = False
    cap_hz: int = 0


def plan_rate(files: EmcFiles, rate_hz: int) -> ControlWrite:
    """Return the write that requests a memory rate."""
    return ControlWrite(files.rate, value=rate_hz, read_path=files.asked, expect=rate_hz, slack=EMC_SLACK_HZ)


def plan_emc_lock(files: EmcFiles, found: EmcState, rate_hz: int) -> List[ControlWrite]:
    """Return the writes that hold the memory at one rate; a lower cap is raised first, since it limits the rate too."""
    cap = [plan_write(files.cap, rate_hz, EMC_SLACK_HZ)] if files.cap and 0 < found.cap_hz < rate_hz else []
    lock = [] if found.locked else [plan_write(files.lock, 1)]
    held = found.locked and abs(found.rate_hz - rate_hz) <= EMC_SLACK_HZ
    rate = [] if held else [plan_rate(files, rate_hz)]
    return cap + (lock + rate if files.lock_first else rate + lock)


def plan_emc_release(files: EmcFiles, found: EmcState) -> List[ControlWrite]:
    """Return the writes that unlock the memory clock."""
    return [plan_write(files.lock, 0)] if files.lock and found.locked else []


def plan_emc_cap(files: EmcFiles, found: EmcState, cap_hz: int) -> List[ControlWrite]:
    """Return the writes that cap the memory clock; a lock is released, since no cap affects a locked rate."""
    slack = EMC_SLACK_HZ if cap_hz else 0
    cap = [plan_write(files.cap, cap_hz, slack)] if abs(found.cap_hz - cap_hz) > slack else []
    return cap + plan_emc_release(files, found)


def plan_emc_restore(files: EmcFiles, now: EmcState, before: EmcState) -> List[ControlWrite]:
    """Return the writes that restore the memory clock: its cap first (it limits rates), then rate and lock.

    When the lock is released, the rate is written before, under the lock: the kernel requests another rate only when
    its own demand changes. The Nano's override is switched off first, and takes back its requested rate.
    """
    cap = [plan_write(files.cap, before.cap_hz)] if files.cap and now.cap_hz != before.cap_hz else []
    on = [plan_write(files.lock, 1)] if before.locked and not now.locked else []
    off = [plan_write(files.lock, 0)] if now.locked and not before.locked else []
    if not files.lock_first:
        return cap + off + ([plan_rate(files, before.asked_hz)] if now.asked_hz != before.asked_hz else []) + on
    differs = bool(before.rate_hz) and abs(now.rate_hz - before.rate_hz) > EMC_SLACK_HZ
    rate = [plan_rate(files, before.rate_hz)] if on or (differs and now.locked) else []
    return cap + on + rate + off
