"""Pure planning: from the state found and the state wanted to single writes, in an order no kernel refuses."""

from typing import Dict, List, NamedTuple

SLACK_HZ = 999
"""A devfreq limit is kept in kHz by newer kernels, so a value may come back this much off."""
EMC_SLACK_HZ = 500000
"""Memory rates come out of a divider. Chosen by us: far below the closest pair in any table (3199 and 3200 MHz)."""


class ControlWrite(NamedTuple):
    """One write to a control file, and what must be read back afterwards from ``read_path``, within ``slack``."""

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
    """Where a pair of limits lives, and by how much what is read back may differ."""

    low: str
    high: str
    slack: int = 0


def plan_write(path: str, value: int, slack: int = 0) -> ControlWrite:
    """A write that is read back from the same file."""
    return ControlWrite(path, value=value, read_path=path, expect=value, slack=slack)


def plan_limits(files: LimitFiles, found: LimitSpan, wanted: LimitSpan) -> List[ControlWrite]:
    """The writes that change a pair of limits; a limit that is right already is not written.

    The kernel refuses a lower limit above the upper one at every single write: going up the upper limit goes first,
    going down the lower one does. Raises ``ValueError`` where the wanted limits are crossed themselves.
    """
    if wanted.low > wanted.high:
        raise ValueError(f"got a lower limit of {wanted.low} above the upper limit of {wanted.high}")
    high = [plan_write(files.high, wanted.high, files.slack)] if abs(found.high - wanted.high) > files.slack else []
    low = [plan_write(files.low, wanted.low, files.slack)] if abs(found.low - wanted.low) > files.slack else []
    return high + low if wanted.high >= found.high else low + high


def plan_cores_on(files: Dict[int, str], online: Dict[int, bool], wanted: Dict[int, bool]) -> List[ControlWrite]:
    """Switches on what is wanted and off now, lowest core first. Maps are by core number."""
    return [
        plan_write(files[core], 1) for core in sorted(files) if wanted.get(core, False) and not online.get(core, False)
    ]


def plan_cores_off(files: Dict[int, str], online: Dict[int, bool], wanted: Dict[int, bool]) -> List[ControlWrite]:
    """Switches off what is on and not wanted, highest core first; core 0 never, nor a core that is not named."""
    off = [core for core in sorted(files, reverse=True) if core and online.get(core) and not wanted.get(core, True)]
    return [plan_write(files[core], 0) for core in off]


def select_first_cores(files: Dict[int, str], count: int) -> Dict[int, bool]:
    """The first ``count`` cores on, the others off."""
    return {core: rank < count for rank, core in enumerate(sorted(files))}


class EmcFiles(NamedTuple):
    """The memory clock's control files, "" for one that is absent.

    ``rate`` takes a rate, which ``asked`` shows at once and ``now`` shows while ``lock`` is 1; a ``cap`` of 0 is none.
    With the BPMP all three are one file. The Nano's override clock takes its rate before it is switched on.
    """

    rate: str = ""
    asked: str = ""
    now: str = ""
    lock: str = ""
    cap: str = ""

    @property
    def lock_first(self) -> bool:
        """Where only the real rate can be read back, it must be held first, else the kernel changes it at will."""
        return self.asked == self.now


class EmcState(NamedTuple):
    """The memory clock as found: 0 for a rate or cap that is not there."""

    rate_hz: int = 0
    asked_hz: int = 0
    locked: bool = False
    cap_hz: int = 0


def plan_emc_lock(files: EmcFiles, found: EmcState, rate_hz: int) -> List[ControlWrite]:
    """Holds the memory at one rate; a cap below it is raised first, since it would bind the rate too."""
    cap = [plan_write(files.cap, rate_hz, EMC_SLACK_HZ)] if files.cap and 0 < found.cap_hz < rate_hz else []
    lock = [] if found.locked else [plan_write(files.lock, 1)]
    held = found.locked and abs(found.rate_hz - rate_hz) <= EMC_SLACK_HZ
    rate = [] if held else [_rate_write(files, rate_hz)]
    return cap + (lock + rate if files.lock_first else rate + lock)


def plan_emc_release(files: EmcFiles, found: EmcState) -> List[ControlWrite]:
    """Gives the memory clock back to the kernel."""
    return [plan_write(files.lock, 0)] if files.lock and found.locked else []


def plan_emc_cap(files: EmcFiles, found: EmcState, cap_hz: int) -> List[ControlWrite]:
    """Caps the memory clock; a lock is released, since no cap moves a locked rate."""
    slack = EMC_SLACK_HZ if cap_hz else 0
    cap = [plan_write(files.cap, cap_hz, slack)] if abs(found.cap_hz - cap_hz) > slack else []
    return cap + plan_emc_release(files, found)


def plan_emc_restore(files: EmcFiles, now: EmcState, before: EmcState) -> List[ControlWrite]:
    """The memory clock as it was: its cap first (it binds rates), then rate and lock.

    Where the lock goes off the rate is written before, under the lock: the kernel asks for another rate only when its
    own wish changes. The Nano's override is off first, and takes back the rate that it was asked for.
    """
    cap = [plan_write(files.cap, before.cap_hz)] if files.cap and now.cap_hz != before.cap_hz else []
    on = [plan_write(files.lock, 1)] if before.locked and not now.locked else []
    off = [plan_write(files.lock, 0)] if now.locked and not before.locked else []
    if not files.lock_first:
        return cap + off + ([_rate_write(files, before.asked_hz)] if now.asked_hz != before.asked_hz else []) + on
    differs = bool(before.rate_hz) and abs(now.rate_hz - before.rate_hz) > EMC_SLACK_HZ
    rate = [_rate_write(files, before.rate_hz)] if on or (differs and now.locked) else []
    return cap + on + rate + off


def _rate_write(files: EmcFiles, rate_hz: int) -> ControlWrite:
    return ControlWrite(files.rate, value=rate_hz, read_path=files.asked, expect=rate_hz, slack=EMC_SLACK_HZ)
