"""A machine below a recorded root that answers writes as a Jetson's kernel does, and misbehaves where it is told to.

What it holds lies in the root's files, so that several processes see one kernel. Its own notes are in ``/.kernel``:
the policies of offline clusters, the faults that are planted, and a log of every write.
"""

import errno
import fnmatch
import json
import os
import re
import signal
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from fedge.powerd.machine import Machine

CPUS, POLICIES = "/sys/devices/system/cpu", "/sys/devices/system/cpu/cpufreq"
CORE_LINK = re.compile(CPUS + r"/cpu\d+/cpufreq")
"""The one link that comes and goes: a core's to its cluster's policy."""
BPMP_EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
OVERRIDE = "/sys/kernel/debug/clk/override.emc"
NOTES = "/.kernel"
FACTS, FAULTS, LOG, OFFLINE = f"{NOTES}/facts.json", f"{NOTES}/faults.json", f"{NOTES}/log", f"{NOTES}/offline"
DRIFT = f"{NOTES}/drift"
"""How often the drifting memory clock was read; without the file it does not drift."""
HIGHEST_PWM = 255


class Fault(NamedTuple):
    """What goes wrong with the files that match ``path`` (a shell pattern of the board's paths, links resolved or not).

    Writes: ``ignore`` (accepted, nothing changes), ``round`` (another entry of the table is set), ``refuse`` (an
    OSError of the name in ``value``, e.g. ``EINVAL``), ``vanish`` (done, then the file is gone). Reads:
    ``unreadable`` (an OSError, ``value`` as above), ``reads`` (``value`` is what is read). ``after`` matching writes
    or reads pass unharmed, then ``times`` go wrong; ``times`` 0 means all that follow.
    """

    kind: str
    path: str
    value: str = ""
    after: int = 0
    times: int = 0


READ_FAULTS = ("unreadable", "reads")
WRITE_FAULTS = ("ignore", "round", "refuse", "vanish")


def half(min_file: str) -> Fault:
    """The upper limit sticks, the lower one does not."""
    return Fault("ignore", min_file)


def stuck_core(cpu: int) -> Fault:
    """A core that cannot be switched."""
    return Fault("refuse", f"{CPUS}/cpu{cpu}/online", "EBUSY")


def lost_sensor(path: str) -> Fault:
    return Fault("unreadable", path, "ENODEV")


def hot(path: str, degrees_c: float) -> Fault:
    """A thermal zone's file that reads ``degrees_c``."""
    return Fault("reads", path, str(int(degrees_c * 1000)))


class KernelMachine(Machine):
    """``die_at_write`` kills the process (SIGKILL) once that many writes are done; 0 before the first, None never.

    ``quick`` does what nvpmodel does in this process instead of starting the root's program.
    """

    def __init__(self, root: str, die_at_write: Optional[int] = None, quick: bool = False) -> None:
        super().__init__(root)
        self._paths: Dict[str, Path] = {}
        self._behind: Dict[str, str] = {}
        self.die_at_write, self.quick = die_at_write, quick
        self.count = 0
        """The writes that this object was asked for, the refused ones too; a change by nvpmodel counts as one."""
        facts = json.loads(self.path(FACTS).read_text())
        self.emc_hz: List[int] = facts["emc_hz"]
        self.emc_free: int = facts["emc_free"]
        self.again: List[str] = facts["again"]

    # ------------------------------------------------------------------------------------------------------- Machine
    def path(self, path: str) -> Path:
        """As every machine has it; each is put together once, since tests ask for the same few very often."""
        known = self._paths.get(path)
        if known is None:
            known = self._paths[path] = super().path(path)
        return known

    def read(self, path: str) -> str:
        real = self.resolve(path)
        fault = self._fault(READ_FAULTS, path, real)
        if fault is not None and fault.kind == "reads":
            return fault.value
        if fault is not None:
            raise _error(fault.value, real)
        if real in self.again:
            raise _error("EAGAIN", real)
        drifted = self._drifted(real)
        return super().read(path) if drifted is None else drifted

    def write(self, path: str, text: str) -> None:
        self._die_here()
        self.count += 1
        outcome = "refused"
        try:
            self._answer(path, text)
            outcome = "done"
        finally:
            with self.path(LOG).open("a") as log:
                log.write(json.dumps([os.getpid(), self.resolve(path), text, outcome]) + "\n")
        self._die_here()

    def run(self, command: Sequence[str]) -> Tuple[int, str]:
        changes = "-m" in command
        if changes:
            self._die_here()
            self.count += 1
        done = self._nvpmodel(command) if self.quick and command[0] == "nvpmodel" else super().run(command)
        if changes:
            self._die_here()
        return done

    def _nvpmodel(self, command: Sequence[str]) -> Tuple[int, str]:
        from . import nvpmodel

        code, lines = nvpmodel.command(KernelMachine(self.root), command[1:])
        return code, "".join(line + "\n" for line in lines)

    def _die_here(self) -> None:
        if self.die_at_write is not None and self.count >= self.die_at_write:
            os.kill(os.getpid(), signal.SIGKILL)

    # -------------------------------------------------------------------------------------------------- what tests use
    def resolve(self, path: str) -> str:
        """The board's path behind a path with links; looked up once where no link comes and goes."""
        known = self._behind.get(path)
        if known is not None:
            return known
        real = os.path.realpath(str(self.path(path)))
        if not (real + "/").startswith(self.root + "/"):
            raise AssertionError(f"{path} leaves the root {self.root}: {real}")
        behind = real[len(self.root) :] or "/"
        if not CORE_LINK.match(path):
            self._behind[path] = behind
        return behind

    def plant(self, *faults: Fault) -> None:
        """Let these go wrong from now on, in every process that uses the root; none given: nothing goes wrong."""
        self._note_faults([[*fault, 0] for fault in faults])

    def drift(self) -> None:
        """From now on, in every process that uses the root, an unlocked memory clock reads another rate each time."""
        self.path(DRIFT).write_text("0")

    def _drifted(self, real: str) -> Optional[str]:
        """The rate that the clock has wandered to; None where it is held, or this is no memory clock."""
        lock = DRIFTING.get(real)
        if lock is None or not self.path(DRIFT).exists() or not self.path(lock).exists() or self.number(lock) == 1:
            return None
        count = self.number(DRIFT)
        _store(self.path(DRIFT), str(count + 1))
        rates = [rate for rate in self.emc_hz if rate <= self._emc_cap()]
        return str(rates[count % len(rates)])

    def writes(self) -> List[Tuple[str, str]]:
        """Every write since the root was made: the board's path (links resolved) and the text."""
        return [(path, text) for _, path, text, _ in map(json.loads, self.path(LOG).read_text().splitlines())]

    # ---------------------------------------------------------------------------------------------------------- faults
    def _fault(self, kinds: Sequence[str], *paths: str) -> Optional[Fault]:
        """The planted fault that strikes now."""
        if not self.path(FAULTS).exists():
            return None
        planted = json.loads(self.path(FAULTS).read_text())
        for entry in planted:
            fault, seen = Fault(*entry[:-1]), entry[-1]
            if fault.kind in kinds and any(fnmatch.fnmatchcase(path, fault.path) for path in paths):
                entry[-1] += 1
                self._note_faults(planted)
                if seen >= fault.after and (not fault.times or seen < fault.after + fault.times):
                    return fault
        return None

    def _note_faults(self, planted: List[List[object]]) -> None:
        """Whole or not at all, since another process may be reading."""
        new = self.path(f"{FAULTS}.{os.getpid()}")
        new.write_text(json.dumps(planted))
        new.rename(self.path(FAULTS))

    def _answer(self, path: str, text: str) -> None:
        real = self.resolve(path)
        if not self.path(real).exists():
            raise _error("ENOENT", real)
        fault = self._fault(WRITE_FAULTS, path, real)
        if fault is not None and fault.kind == "refuse":
            raise _error(fault.value, real)
        if fault is not None and fault.kind == "ignore":
            return
        self._kernel(real, self._neighbour(real, text) if fault is not None and fault.kind == "round" else text)
        if fault is not None and fault.kind == "vanish":
            self.path(real).unlink()

    def _neighbour(self, real: str, text: str) -> str:
        """Another entry of the file's table, next to what is written."""
        table = self._table(real)
        above = [value for value in table if value > int(text)]
        return str(above[0] if above else table[-2])

    def _table(self, real: str) -> List[int]:
        folder = real.rsplit("/", 1)[0]
        for name in ("scaling_available_frequencies", "available_frequencies"):
            if self.path(f"{folder}/{name}").exists():
                return self._numbers(f"{folder}/{name}")
        return self.emc_hz

    # ------------------------------------------------------------------------------------------------------ the kernel
    def _kernel(self, real: str, text: str) -> None:
        for pattern, handler in HANDLERS:
            if re.match(pattern + "$", real):
                handler(self, real, text.strip())
                return
        if real.startswith(("/sys/", "/proc/")):
            raise _error("EACCES", real)
        self.put(real, text)

    def put(self, real: str, text: str) -> None:
        """The file's content, as a read of it will show it."""
        _store(self.path(real), text + "\n")

    def number(self, real: str) -> int:
        """A file's number, without faults."""
        return int(self.path(real).read_text())

    def _numbers(self, real: str) -> List[int]:
        return [int(word) for word in self.path(real).read_text().split()]

    def online(self, cpu: int) -> bool:
        """Whether a core is on."""
        switch = f"{CPUS}/cpu{cpu}/online"
        return not self.path(switch).exists() or self.number(switch) == 1

    def switch_core(self, real: str, text: str) -> None:
        """Hot-plug; the cluster's policy goes with its last core and comes back, reset, with its first."""
        cpu = int(real.split("/")[-2][3:])
        if text not in {"0", "1"}:
            raise _error("EINVAL", real)
        if cpu == 0 and text == "0":
            raise _error("EBUSY", real)
        if self.number(real) == int(text):
            return
        self.put(real, text)
        self._renew_policies()

    def _renew_policies(self) -> None:
        hidden, shown = self.path(OFFLINE), self.path(POLICIES)
        for policy in [*_named(hidden, "policy"), *_named(shown, "policy")]:
            cpus = [int(word) for word in (policy / "related_cpus").read_text().split()]
            affected = [cpu for cpu in cpus if self.online(cpu)]
            if bool(affected) != (policy.parent == shown):
                _move(policy, shown if affected else hidden)
            place = (shown if affected else hidden) / policy.name
            _store(place / "affected_cpus", " ".join(map(str, affected)) + "\n")
            for cpu in cpus:
                self._link(cpu, policy.name, cpu in affected)
        self._write_ranges()

    def _link(self, cpu: int, policy: str, on: bool) -> None:
        link = self.path(f"{CPUS}/cpu{cpu}/cpufreq")
        if on and not link.is_symlink():
            link.symlink_to(f"../cpufreq/{policy}")
        elif not on and link.is_symlink():
            link.unlink()

    def _write_ranges(self) -> None:
        every = sorted(int(path.name[3:]) for path in _named(self.path(CPUS), "cpu") if path.name[3:].isdigit())
        on = [cpu for cpu in every if self.online(cpu)]
        self.put(f"{CPUS}/online", ranges(on))
        self.put(f"{CPUS}/offline", ranges([cpu for cpu in every if cpu not in on]))

    def limit_cpu(self, real: str, text: str) -> None:
        """cpufreq takes the nearest clock within the hardware's range."""
        table = self._table(real)
        value = _number(text, real)
        self._limit(real, min(table, key=lambda entry: (abs(entry - value), entry)), "scaling_{}_freq")

    def limit_gpu(self, real: str, text: str) -> None:
        """devfreq takes the next clock above, or the highest."""
        value = _number(text, real)
        above = [entry for entry in self._table(real) if entry >= value]
        self._limit(real, above[0] if above else self._table(real)[-1], "{}_freq")

    def _limit(self, real: str, value: int, name: str) -> None:
        folder, file = os.path.split(real)
        upper = file == name.format("max")
        other = self.number(f"{folder}/{name.format('min' if upper else 'max')}")
        if (value < other) if upper else (value > other):
            raise _error("EINVAL", real)
        self.put(real, str(value))
        if upper:
            self.put(f"{folder}/{name.format('cur')}", str(value))  # a busy board

    def cap_emc(self, real: str, text: str) -> None:
        """The cap: 0 or more than the table lifts it, what is not in the table is ignored."""
        value = _number(text, real)
        if value == 0 or value > self.emc_hz[-1]:
            self.put(real, str(self.emc_free))
        elif value in self.emc_hz:
            self.put(real, str(value))
        self._renew_emc()

    def rate_emc(self, real: str, text: str) -> None:
        """bpmp: a rate that is not in the table is ignored; the cap holds."""
        if _number(text, real) in self.emc_hz:
            self.put(real, str(min(int(text), self._emc_cap())))

    def lock_emc(self, real: str, text: str) -> None:
        if text not in {"0", "1"}:
            raise _error("EINVAL", real)
        self.put(real, text)
        self._renew_emc()

    def update_emc(self, real: str, text: str) -> None:
        """The Nano's override: taken up while ``clk_state`` is 1."""
        if _number(text, real) in self.emc_hz:
            self.put(real, text)
        self._renew_emc()

    def _emc_cap(self) -> int:
        caps = [path for path in EMC_CAPS if self.path(path).exists()]
        return (self.number(caps[0]) if caps else 0) or self.emc_hz[-1]

    def _renew_emc(self) -> None:
        """The memory clock after a change of the cap or of the lock; unlocked, it runs at the cap."""
        cap = self._emc_cap()
        if self.path(f"{BPMP_EMC}/rate").exists():
            locked = self.number(f"{BPMP_EMC}/mrq_rate_locked") == 1
            self.put(f"{BPMP_EMC}/rate", str(min(self.number(f"{BPMP_EMC}/rate"), cap) if locked else cap))
        elif self.path(f"{OVERRIDE}/clk_state").exists():
            locked = self.number(f"{OVERRIDE}/clk_state") == 1
            wanted = self.number(f"{OVERRIDE}/clk_update_rate") if locked else cap
            self.put(f"{OVERRIDE}/clk_rate", str(min(wanted, cap)))

    def set_pwm(self, real: str, text: str) -> None:
        if not 0 <= _number(text, real) <= HIGHEST_PWM:
            raise _error("EINVAL", real)
        self.put(real, text)

    def drop_caches(self, real: str, text: str) -> None:
        if text not in {"1", "2", "3"}:
            raise _error("EINVAL", real)
        self.put(real, text)


DRIFTING = {f"{BPMP_EMC}/rate": f"{BPMP_EMC}/mrq_rate_locked", f"{OVERRIDE}/clk_rate": f"{OVERRIDE}/clk_state"}
"""The files that show the memory's clock, and the lock that holds it."""
EMC_CAPS = ("/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", "/sys/kernel/nvpmodel_clk_cap/emc")

HANDLERS: Tuple[Tuple[str, Callable[[KernelMachine, str, str], None]], ...] = (
    (CPUS + r"/cpu\d+/online", KernelMachine.switch_core),
    (POLICIES + r"/policy\d+/scaling_(min|max)_freq", KernelMachine.limit_cpu),
    (r"/sys/devices/.*/devfreq/[^/]+/(min|max)_freq", KernelMachine.limit_gpu),
    ("(" + "|".join(EMC_CAPS) + ")", KernelMachine.cap_emc),
    (BPMP_EMC + "/rate", KernelMachine.rate_emc),
    (f"({BPMP_EMC}/mrq_rate_locked|{OVERRIDE}/clk_state)", KernelMachine.lock_emc),
    (OVERRIDE + "/clk_update_rate", KernelMachine.update_emc),
    (r"/sys/devices/.*/(pwm1|target_pwm)", KernelMachine.set_pwm),
    ("/proc/sys/vm/drop_caches", KernelMachine.drop_caches),
    (r"/sys/devices/.*/(tpc_pg_mask|fbp_pg_mask|power/control|governor|oc\d_throt_en)", KernelMachine.put),
)


def ranges(numbers: Sequence[int]) -> str:
    """The kernel's list form: 0-3,6."""
    parts: List[List[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _named(folder: Path, begin: str) -> List[Path]:
    """What lies in the folder under names that begin so, sorted; nothing where there is no such folder."""
    return sorted(path for path in folder.iterdir() if path.name.startswith(begin)) if folder.is_dir() else []


def _move(policy: Path, folder: Path) -> None:
    """Out of sight or back, with its limits at the hardware's."""
    lowest, highest = ((policy / f"cpuinfo_{end}_freq").read_text() for end in ("min", "max"))
    values: Dict[str, str] = {"min": lowest, "max": highest, "cur": highest}
    for name, text in values.items():
        _store(policy / f"scaling_{name}_freq", text)
    policy.rename(folder / policy.name)


def _store(path: Path, text: str) -> None:
    """Written over in place: a file that is emptied first is flushed to the disk when it is closed, which is slow."""
    target = os.open(str(path), os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.read(target, len(text) + 1) != text.encode():
            os.pwrite(target, text.encode(), 0)
            os.ftruncate(target, len(text))
    finally:
        os.close(target)


def _number(text: str, real: str) -> int:
    if not text.isdigit():
        raise _error("EINVAL", real)
    return int(text)


def _error(name: str, path: str) -> OSError:
    code = getattr(errno, name)
    return OSError(code, os.strerror(code), path)
