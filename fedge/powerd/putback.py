"""Putting a snapshot back: each knob on its own, as far as it goes, whatever else is broken."""

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence

from fedge.powerd import plan
from fedge.powerd.change import NotStuck, Snapshot, write_all
from fedge.powerd.knobs import Hardware, always_on, emc_now, policy_files, policy_folders, policy_table
from fedge.powerd.machine import Machine
from fedge.powerd.mode import Refused
from fedge.powerd.plan import Emc, Span, SpanFiles, Write, plain
from fedge.powerd.reading import maybe_whole, whole

FAILURES = (NotStuck, Refused, OSError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError)
"""A snapshot that comes from a file may hold anything."""


class PutBack:
    """Puts a snapshot's knobs back; ``left`` says what could not be. The snapshot may lack parts."""

    def __init__(self, machine: Machine, hardware: Hardware, before: Snapshot) -> None:
        self._machine, self._hardware, self._before = machine, hardware, before
        self.left: List[str] = []

    def run(self) -> None:
        """Cores on, clocks, cores off."""
        self.attempt("cores", partial(self._cores, on=True))
        self.attempt("cpu", self._cpu)
        self.attempt("gpu", self._gpu)
        self.attempt("emc", self._emc)
        self.attempt("cores", partial(self._cores, on=False))

    def attempt(self, what: str, act: Callable[[], None]) -> None:
        """Do it, or note why not."""
        try:
            act()
        except FAILURES as error:
            self.left.append(f"{what}: {error}")

    def _cores(self, on: bool) -> None:
        wanted = {int(core): bool(value) for core, value in self._before.get("online", {}).items()}
        found = self._online()
        writes = (plan.cores_on if on else plan.cores_off)(self._hardware.cores, found, wanted)
        for write in writes:
            self.attempt(f"core {write.path}", partial(self._stubborn, [write]))
        if not on:  # one that should be on was tried before, and noted
            unread = [core for core in found if not wanted.get(core, True) and self._switch(core) is None]
            self.left += [f"{self._hardware.cores[core]}: it cannot be read, and was 0" for core in unread]

    def _online(self) -> Dict[int, bool]:
        """A core whose switch is there and cannot be read counts as what it must not be: as off."""
        return {core: self._switch(core) == 1 for core in self._hardware.cores}

    def _switch(self, core: int) -> Optional[int]:
        path = self._hardware.cores[core]
        return 1 if always_on(self._machine, core, path) else maybe_whole(self._machine, path)

    def _stubborn(self, writes: List[Write]) -> None:
        """Twice, since a core may be busy for a moment."""
        try:
            write_all(self._machine, writes)
        except NotStuck:
            write_all(self._machine, writes)

    def _cpu(self) -> None:
        """Every policy as it was; one that was off then and came with its cores gets the kernel's own whole range."""
        if "cpu" not in self._before:
            return
        before = dict(self._before["cpu"])
        for folder in policy_folders(self._machine, self._online()):
            name, table = folder.rsplit("/", 1)[1], policy_table(self._machine, folder)
            pair = before.pop(name, [table[0], table[-1]] if table else None)
            if pair is not None:
                self.attempt(name, partial(self._limits, policy_files(folder), pair))
        self.left += [f"{name}: it is not there" for name in before]

    def _gpu(self) -> None:
        gpu, before = self._hardware.gpu(), self._before.get("gpu", {})
        if gpu is not None and gpu.name in before:
            self._limits(gpu.files, before[gpu.name])

    def _limits(self, files: SpanFiles, pair: Sequence[Any]) -> None:
        """In the right order; where that fails, each limit on its own, as often as any order could need."""
        low, high = (int(value) for value in pair)
        try:
            found = Span(whole(self._machine, files.low), whole(self._machine, files.high))
            write_all(self._machine, plan.limits(files, found, Span(low, high)))
        except FAILURES:
            both = [plain(files.low, low, files.slack), plain(files.high, high, files.slack)]
            self._one_by_one([*both, both[0]])

    def _emc(self) -> None:
        if "emc" not in self._before:
            return
        found, files = self._before["emc"], self._hardware.emc_files
        before = Emc(int(found["rate_hz"]), int(found["asked_hz"]), bool(found["locked"]), int(found["cap_hz"]))
        try:
            write_all(self._machine, plan.emc_put_back(files, emc_now(self._machine, files), before))
        except FAILURES:
            writes = [plain(files.cap, before.cap_hz)] if files.cap else []
            if files.lock and (before.locked or not files.lock_first):  # else the rate is the kernel's own again
                writes.append(Write(files.rate, before.asked_hz, files.asked, before.asked_hz, plan.EMC_SLACK_HZ))
            writes += [plain(files.lock, int(before.locked))] if files.lock else []
            self._one_by_one(writes)

    def _one_by_one(self, writes: List[Write]) -> None:
        """Every write tried; then each file that does not read as it should is noted."""
        for write in writes:
            try:
                write_all(self._machine, [write])
            except NotStuck:
                continue
        for write in sorted(set(writes)):
            got = maybe_whole(self._machine, write.read_path)
            if got is None or abs(got - write.expect) > write.slack:
                self.left.append(f"{write.path}: it {_is(got)}, not {write.expect}")


def _is(got: Optional[int]) -> str:
    return "cannot be read" if got is None else f"is {got}"
