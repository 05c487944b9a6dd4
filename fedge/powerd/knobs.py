"""A board's knobs and their current settings: cores, every cpufreq policy, the GPU and the memory clock."""

import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from fedge.powerd.config import Config
from fedge.powerd.machine import Machine, read_int, read_numbers, try_read_int, try_read_text
from fedge.powerd.mode_records import KnobTables, Mode
from fedge.powerd.write_plan import EMC_SLACK_HZ, SLACK_HZ, EmcFiles, EmcState, LimitFiles, LimitSpan

CPU = "/sys/devices/system/cpu"
DEVFREQ = "/sys/class/devfreq"
BPMP = "/sys/kernel/debug/bpmp/debug"
OVERRIDE = "/sys/kernel/debug/clk/override.emc"
BWMGR = "/sys/kernel/debug/tegra_bwmgr"
EMC_CAPS = ("/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", "/sys/kernel/nvpmodel_clk_cap/emc")
"""Cap files up to JetPack 5, and from JetPack 6 on; in Hz, 0 means no cap."""
GPU_NODES = ("gpu", "gv11b", "gp10b", "ga10b", "gb10b")
"""Device-tree names of the GPU: ``gpu`` on Nano and JetPack 6, ``gv11b`` on Xavier, ``gp10b`` on TX2, ``ga10b``
on Orin, ``gb10b`` on Thor.
"""
READ_ONLY_GPUS = ("gpu-gpc-0", "gpu-nvd-0")
"""Thor's GPU clocks, identified by folder name only: reported, never set."""
KHZ_THRESHOLD = 10000000
"""Memory rates below this number are in kHz: no memory runs below 10 MHz or at 10 GHz."""


class CpufreqPolicy(NamedTuple):
    """The cpufreq policy of an online cluster.

    Attributes:
        core: First core of the cluster.
        span: Current limits in kHz.
        table: Available clocks in kHz.
    """

    name: str
    core: int
    files: LimitFiles
    span: LimitSpan
    table: Tuple[int, ...]


class Gpu(NamedTuple):
    """A GPU's devfreq device.

    Attributes:
        table: Available clocks in Hz; empty for a device that is only reported.
    """

    name: str
    files: LimitFiles
    table: Tuple[int, ...]


class Hardware(NamedTuple):
    """Properties that stay the same while a board is up.

    Attributes:
        cores: Control file of each core, by core number.
        cpu_khz: Clocks of core 0's policy in kHz.
        emc: Control of the memory clock: ``lock``, ``cap`` or ``none``.
    """

    cores: Dict[int, str]
    cpu_khz: Tuple[int, ...]
    gpus: Tuple[Gpu, ...]
    emc: str
    emc_files: EmcFiles
    emc_hz: Tuple[int, ...]

    def tables(self) -> KnobTables:
        """Return the values of each knob."""
        gpu = self.gpu()
        return KnobTables(
            tuple(range(1, len(self.cores) + 1)), self.cpu_khz, gpu.table if gpu is not None else (), self.emc_hz
        )

    def gpu(self) -> Optional[Gpu]:
        """Return the GPU that can be set, or None."""
        return next((gpu for gpu in self.gpus if gpu.table), None)


class KnobState(NamedTuple):
    """The settings at one moment.

    Attributes:
        online: Whether each core is on, by core number.
        policies: Policies of the online clusters.
        gpus: Limits of each GPU in Hz, by name.
    """

    online: Dict[int, bool]
    policies: Tuple[CpufreqPolicy, ...]
    gpus: Dict[str, LimitSpan]
    emc: EmcState


def discover_hardware(machine: Machine, config: Config) -> Hardware:
    """Discover the board's knobs.

    The CPU table is that of core 0's policy, the only one that always exists. A policy with another table is later set
    to its own highest value at or below the requested one.

    Raises:
        OSError: Core 0's policy cannot be read.
    """
    cores, files = find_core_files(machine), find_emc_files(machine)
    first = read_policies(machine, read_online(machine, cores))
    rates = read_emc_table(machine, config)
    control = choose_emc_control(files, config.emc) if rates else "none"
    return Hardware(
        cores,
        cpu_khz=first[0].table if first else (),
        gpus=find_gpus(machine),
        emc=control,
        emc_files=files,
        emc_hz=rates if control != "none" else (),
    )


def read_state(machine: Machine, hardware: Hardware) -> KnobState:
    """Return the current settings.

    Raises:
        OSError: A knob cannot be read.
    """
    on = read_online(machine, hardware.cores)
    spans = {gpu.name: _read_gpu_span(machine, gpu) for gpu in hardware.gpus}
    return KnobState(on, tuple(read_policies(machine, on)), spans, read_emc(machine, hardware.emc_files))


def _read_gpu_span(machine: Machine, gpu: Gpu) -> LimitSpan:
    if gpu.table:
        return read_span(machine, gpu.files)
    return LimitSpan(try_read_int(machine, gpu.files.low) or 0, try_read_int(machine, gpu.files.high) or 0)


def find_core_files(machine: Machine) -> Dict[int, str]:
    """Return the control file of every core, by core number; core 0 often has none."""
    names = [path.rsplit("/", 1)[1] for path in machine.glob(f"{CPU}/cpu[0-9]*")]
    numbers = sorted(int(name[3:]) for name in names if re.match(r"cpu\d+$", name))
    return {number: f"{CPU}/cpu{number}/online" for number in numbers}


def read_online(machine: Machine, files: Dict[int, str]) -> Dict[int, bool]:
    """Return whether each core is on; core 0 is if it has no control file.

    Raises:
        OSError: A control file cannot be read or is gone.
    """
    return {core: is_always_on(machine, core, path) or read_int(machine, path) == 1 for core, path in files.items()}


def is_always_on(machine: Machine, core: int, path: str) -> bool:
    """Return whether this is core 0 without a control file; any other core without one has lost it."""
    return core == 0 and not machine.exists(path)


def read_policies(machine: Machine, on: Dict[int, bool]) -> List[CpufreqPolicy]:
    """Return the policies of the online clusters, by their first core.

    The folder of an offline cluster is missing on some kernels and answers with errors on others, so a policy counts if
    its first core is on or it names online cores.

    Raises:
        OSError: A policy that counts cannot be read.
    """
    found = []
    for folder in find_policy_folders(machine, on):
        core, files = first_core_of(folder), policy_files(folder)
        span, table = read_span(machine, files), read_policy_table(machine, folder)
        found.append(CpufreqPolicy(f"policy{core}", core=core, files=files, span=span, table=table))
    return found


def find_policy_folders(machine: Machine, on: Dict[int, bool]) -> List[str]:
    """Return the folders of the policies that count, by their first core."""
    folders = sorted(machine.glob(f"{CPU}/cpufreq/policy[0-9]*"), key=first_core_of)
    return [one for one in folders if on.get(first_core_of(one)) or try_read_text(machine, f"{one}/affected_cpus")]


def first_core_of(folder: str) -> int:
    """Return the core that a policy's folder is named after."""
    return int(folder.rsplit("policy", 1)[1])


def policy_files(folder: str) -> LimitFiles:
    """Return the control files of a policy's limits."""
    return LimitFiles(f"{folder}/scaling_min_freq", f"{folder}/scaling_max_freq")


def read_policy_table(machine: Machine, folder: str) -> Tuple[int, ...]:
    """Return a policy's clocks in kHz, ascending."""
    return read_numbers(machine, f"{folder}/scaling_available_frequencies")


def read_span(machine: Machine, files: LimitFiles) -> LimitSpan:
    """Return a pair of limits as set; raises ``OSError``."""
    return LimitSpan(read_int(machine, files.low), read_int(machine, files.high))


def find_gpus(machine: Machine) -> Tuple[Gpu, ...]:
    """Return the GPUs among the devfreq devices, by device-tree name, since folder names differ between releases."""
    found = []
    for folder in machine.glob(f"{DEVFREQ}/*"):
        name = folder.rsplit("/", 1)[1]
        files = LimitFiles(f"{folder}/min_freq", f"{folder}/max_freq", SLACK_HZ)
        if try_read_text(machine, f"{folder}/device/of_node/name") in GPU_NODES and name not in READ_ONLY_GPUS:
            found.append(Gpu(name, files, read_numbers(machine, f"{folder}/available_frequencies")))
        elif name in READ_ONLY_GPUS:
            found.append(Gpu(name, files, ()))
    return tuple(found)


def find_emc_files(machine: Machine) -> EmcFiles:
    """Return the control files of the memory clock, whichever generation this is."""
    cap = next((path for path in EMC_CAPS if machine.exists(path)), "")
    clock, rate = f"{BPMP}/clk/emc", f"{BPMP}/clk/emc/rate"
    if machine.exists(f"{clock}/mrq_rate_locked") and machine.exists(rate):
        return EmcFiles(rate, asked=rate, now=rate, lock=f"{clock}/mrq_rate_locked", cap=cap)
    if machine.exists(f"{OVERRIDE}/clk_state") and machine.exists(f"{OVERRIDE}/clk_update_rate"):
        rate, now = f"{OVERRIDE}/clk_update_rate", f"{OVERRIDE}/clk_rate"
        now = now if machine.exists(now) else rate
        asked = rate if try_read_int(machine, rate) is not None else now  # it may be write-only
        return EmcFiles(rate, asked=asked, now=now, lock=f"{OVERRIDE}/clk_state", cap=cap)
    return EmcFiles(cap=cap)


def choose_emc_control(files: EmcFiles, wanted: str) -> str:
    """Return the control of the memory clock: ``lock`` if wanted and available, else ``cap``, else ``none``."""
    if wanted == "lock" and files.lock:
        return "lock"
    return "cap" if files.cap else "none"


def read_emc_table(machine: Machine, config: Config) -> Tuple[int, ...]:
    """Return the memory's rates in Hz: the firmware's list, else the configured one, else only the highest rate.

    The firmware lists kHz, separated by blanks, some releases with "(kHz)" behind; rates in Hz are recognised by their
    size. Rates above the clock's present maximum are omitted, since the firmware ignores them.
    """
    listed = read_numbers(machine, f"{BPMP}/emc/possible_rates")
    rates = tuple(sorted({rate * 1000 if rate < KHZ_THRESHOLD else rate for rate in listed}))
    highest = try_read_int(machine, f"{BPMP}/clk/emc/max_rate") or try_read_int(machine, f"{BWMGR}/emc_max_rate")
    rates = rates or tuple(sorted(set(config.emc_table_hz)))
    if highest is None or highest <= 0:
        return rates
    return tuple(rate for rate in rates if rate <= highest + EMC_SLACK_HZ) or (highest,)


def read_emc(machine: Machine, files: EmcFiles) -> EmcState:
    """Return the memory clock's settings; a file that shows two values is read once, because it changes.

    Raises:
        OSError: A control file cannot be read.
    """
    rate_hz = read_int(machine, files.now) if files.now else 0
    return EmcState(
        rate_hz,
        rate_hz if files.asked == files.now else read_int(machine, files.asked),
        bool(read_int(machine, files.lock)) if files.lock else False,
        read_int(machine, files.cap) if files.cap else 0,
    )


def mode_from_state(state: KnobState, hardware: Hardware) -> Mode:
    """Return the mode of a state: its upper limits as table values, and the memory's rate if it is locked."""
    gpu, tables = hardware.gpu(), hardware.tables()
    return Mode(
        sum(state.online.values()),
        _snap_to_table(tables.cpu_khz, state.policies[0].span.high, 0) if state.policies else None,
        _snap_to_table(gpu.table, state.gpus[gpu.name].high, gpu.files.slack) if gpu is not None else None,
        _snap_to_table(tables.emc_hz, _effective_emc_hz(state.emc, hardware), EMC_SLACK_HZ),
    )


def highest_at_most(values: Sequence[int], wanted: int) -> int:
    """Return the highest value at or below ``wanted``, else the lowest; ``values`` are ascending and not empty."""
    below = [value for value in values if value <= wanted]
    return below[-1] if below else values[0]


def _snap_to_table(values: Tuple[int, ...], found: Optional[int], slack: int) -> Optional[int]:
    if not values:
        return None
    return values[-1] if found is None else highest_at_most(values, found + slack)


def _effective_emc_hz(emc: EmcState, hardware: Hardware) -> Optional[int]:
    if hardware.emc == "lock" and emc.locked:
        return emc.rate_hz
    return emc.cap_hz if emc.cap_hz > 0 else None


def limits_from_state(state: KnobState) -> Dict[str, Dict[str, object]]:
    """Return the raw limits, for display and logs."""
    return {
        "cpu": {policy.name: {"min_khz": policy.span.low, "max_khz": policy.span.high} for policy in state.policies},
        "gpu": {name: {"min_hz": span.low, "max_hz": span.high} for name, span in state.gpus.items()},
        "emc": {"rate_hz": state.emc.rate_hz, "locked": state.emc.locked, "cap_hz": state.emc.cap_hz},
    }
