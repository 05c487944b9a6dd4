"""nvpmodel: its configuration file written from a board's record, and the command that applies it below a root.

The file's format and the command's messages are those of NVIDIA's documentation and of published logs. The command
differs in one thing: after a YES it notes the reboot in ``/.kernel/rebooted`` instead of doing it.
"""

import re
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from fedge.powerd.machine import Machine

from .records import UNCAPPED, Board, Stock, nearest

CONF, STATUS, SWITCH = "/etc/nvpmodel.conf", "/var/lib/nvpmodel/status", "/.kernel/nvpmodel"
REBOOTED = "/.kernel/rebooted"
LONGEST = 9223372036854775807
CONTAINER = "Running in chroot, ignoring request"
FAILED = 255

_SECTION = re.compile(r"<\s*(PARAM|POWER_MODEL|PM_CONFIG)\s+(.*?)\s*>\s*$")


# ------------------------------------------------------------------------------------------------------------ the file
def conf_text(board: Board) -> str:
    """The text of the board's configuration file."""
    lines = ["#", "# Power models of " + board.model, "#", ""]
    lines += _parameters(board)
    for stock in board.stock:
        lines += [f"< POWER_MODEL ID={stock.id} NAME={stock.name} >", *_model(board, stock), ""]
    lines += ["# mandatory section to configure the default power mode", f"< PM_CONFIG DEFAULT={board.default} >", ""]
    return "\n".join(lines)


def _parameters(board: Board) -> List[str]:
    lines = ["< PARAM TYPE=FILE NAME=CPU_ONLINE >"]
    lines += [f"CORE_{cpu} /sys/devices/system/cpu/cpu{cpu}/online" for cpu in board.cpus]
    for name, mask in _masks(board.found):
        lines += ["", f"< PARAM TYPE=FILE NAME={name} >"]
        lines += [f"{mask} /sys/devices/gpu.0/{mask.lower()}"]
        lines += [f"{mask}_KNEXT /sys/devices/platform/gpu.0/{mask.lower()}"]
    for word, short in (("ENABLE", "EN"), ("DISABLE", "DIS")):
        lines += ["", f"< PARAM TYPE=FILE NAME=GPU_POWER_CONTROL_{word} >"]
        lines += [f"GPU_PWR_CNTL_{short} /sys/devices/gpu.0/power/control"]
        lines += [f"GPU_PWR_CNTL_{short}_KNEXT /sys/devices/platform/gpu.0/power/control"]
    for name, cpu, _ in _cpu_names(board):
        folder = f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_"
        lines += ["", f"< PARAM TYPE=CLOCK NAME={name} >"]
        lines += _clock(folder + "available_frequencies", folder + "max_freq", folder + "min_freq")
    devfreq = f"{_old_device(board)}/devfreq/{_old_device(board).split('/')[-1]}"
    lines += ["", "< PARAM TYPE=CLOCK NAME=GPU >"]
    lines += _clock(devfreq + "/available_frequencies", devfreq + "/max_freq", devfreq + "/min_freq", knext=False)
    knext = board.gpu.knext or f"{board.gpu.device}/devfreq/{board.gpu.device_name}"
    lines += [f"FREQ_TABLE_KNEXT {knext}/available_frequencies"]
    lines += [f"MAX_FREQ_KNEXT {knext}/max_freq", f"MIN_FREQ_KNEXT {knext}/min_freq"]
    emc = "<PARAM" if "Orin" in board.model else "< PARAM"  # NVIDIA's own files have this slip
    lines += ["", emc + " TYPE=CLOCK NAME=EMC >", "MAX_FREQ /sys/kernel/nvpmodel_emc_cap/emc_iso_cap"]
    return [*lines, "MAX_FREQ_KNEXT " + board.emc.cap, ""]


def _old_device(board: Board) -> str:
    """Where the GPU of this kind lay before the newer kernel."""
    return "/sys/devices/17000000.ga10b" if "tegra234" in board.compatible[-1] else board.gpu.device


def _clock(table: str, top: str, bottom: str, knext: bool = True) -> List[str]:
    names = (("FREQ_TABLE", table), ("MAX_FREQ", top), ("MIN_FREQ", bottom))
    newer = [f"{name}_KNEXT {path}" for name, path in names if knext]
    return [*(f"{name} {path}" for name, path in names), *newer]


def _cpu_names(board: Board) -> List[Tuple[str, int, Tuple[int, ...]]]:
    """Each CPU parameter's name, the core it is reached through, and the cores it stands for."""
    if board.cores_in_conf == "core":
        return [(f"CPU_A78_{cpu}", cpu, (cpu,)) for cpu in board.cpus]
    return [(cluster.name, cluster.cpus[0], cluster.cpus) for cluster in board.clusters]


def _masks(stock: Stock) -> List[Tuple[str, str]]:
    masks = [("FBP_POWER_GATING", "FBP_PG_MASK")] if stock.fbp_mask is not None else []
    return [*masks, *([("TPC_POWER_GATING", "TPC_PG_MASK")] if stock.tpc_mask is not None else [])]


def _model(board: Board, stock: Stock) -> List[str]:
    cores = [cpu for cpu in board.cpus if cpu or not board.jetpack4]  # up to JetPack 4 core 0 is not named
    lines = [f"CPU_ONLINE CORE_{cpu} {int(cpu in stock.cpus)}" for cpu in cores]
    values = {"FBP_PG_MASK": stock.fbp_mask, "TPC_PG_MASK": stock.tpc_mask}
    lines += [f"{name} {mask} {values[mask]}" for name, mask in _masks(stock)]
    lines += ["GPU_POWER_CONTROL_ENABLE GPU_PWR_CNTL_EN on"]
    for name, _, cpus in _cpu_names(board):
        if set(cpus) & set(stock.cpus):
            lines += [f"{name} MIN_FREQ {stock.cpu_min_khz}", f"{name} MAX_FREQ {stock.cpu_max_khz}"]
    lines += [f"GPU MIN_FREQ {stock.gpu_min_hz}", f"GPU MAX_FREQ {stock.gpu_max_hz}"]
    return [*lines, "GPU_POWER_CONTROL_DISABLE GPU_PWR_CNTL_DIS auto", f"EMC MAX_FREQ {stock.emc_max_hz}"]


# --------------------------------------------------------------------------------------------------------- the command
class Setting(NamedTuple):
    """One line of a power model: the parameter, its argument, the wanted value."""

    parameter: str
    argument: str
    value: str


class Config(NamedTuple):
    """A configuration file: paths by (parameter, argument), each parameter's type, the models, the default's id."""

    paths: Dict[Tuple[str, str], str]
    kinds: Dict[str, str]
    names: Dict[int, str]
    models: Dict[int, List[Setting]]
    default: int


def parse(text: str) -> Config:
    """Read a configuration file."""
    config = Config({}, {}, {}, {}, 0)
    kind, fields = "", {}  # type: Tuple[str, Dict[str, str]]
    for line in text.splitlines():
        section = _SECTION.match(line)
        words = line.split()
        if section:
            kind, fields = section.group(1), dict(word.split("=", 1) for word in section.group(2).split())
            config = _section(config, kind, fields)
        elif words and not line.startswith("#"):
            if kind == "PARAM":
                config.paths[fields["NAME"], words[0]] = words[1]
            else:
                config.models[int(fields["ID"])].append(Setting(*words))
    return config


def _section(config: Config, kind: str, fields: Dict[str, str]) -> Config:
    if kind == "PARAM":
        config.kinds[fields["NAME"]] = fields["TYPE"]
    elif kind == "POWER_MODEL":
        config.names[int(fields["ID"])], config.models[int(fields["ID"])] = fields["NAME"], []
    else:
        config = config._replace(default=int(fields["DEFAULT"]))
    return config


def command(machine: Machine, arguments: Sequence[str], answer: Sequence[str] = ()) -> Tuple[int, List[str]]:
    """What ``nvpmodel arguments`` does on the machine (a KernelMachine): exit code and lines of output.

    ``answer`` holds what the person at the terminal would type; nothing when the input is closed.
    """
    config = parse(machine.read(CONF))
    switch = machine.read(SWITCH) if machine.exists(SWITCH) else ""
    if "-m" in arguments:
        if switch == "container":
            return 0, [CONTAINER]
        if switch == "fails":
            return FAILED, ["NVPM ERROR: failed to set power mode!"]
        return _set(machine, config, arguments[list(arguments).index("-m") + 1], answer, fails_midway=switch == "half")
    if "-q" in arguments:
        return 0, _query(machine, config, "--verbose" in arguments)
    return FAILED, ["NVPM ERROR: no such option; -q [--verbose] and -m ID are there"]


def current(machine: Machine, config: Config) -> int:
    """The id in the status file."""
    return int(machine.read(STATUS).split(":")[1]) if machine.exists(STATUS) else config.default


def _query(machine: Machine, config: Config, verbose: bool) -> List[str]:
    id_ = current(machine, config)
    lines = [f"NV Power Mode: {config.names[id_]}", str(id_)]
    if not verbose:
        return lines
    head = ("Config file: " + CONF, "parsing done for " + CONF, "Current mode: ")
    lines = [*("NVPM VERB: " + text for text in head), *lines]
    for setting in config.models[id_]:
        path = _path(machine, config, setting.parameter, setting.argument)
        if path and machine.exists(path):
            where = f"PARAM {setting.parameter}: ARG {setting.argument}: PATH {path}"
            lines += [f"NVPM VERB: {where}: REAL_VAL: {machine.read(path)} CONF_VAL: {setting.value}"]
    return lines


def _path(machine: Machine, config: Config, parameter: str, argument: str) -> Optional[str]:
    """The argument's path on this kernel: the first that exists."""
    known = [config.paths.get((parameter, name)) for name in (argument, argument + "_KNEXT")]
    return next((path for path in known if path and machine.exists(path)), None)


def _set(
    machine: Machine, config: Config, id_text: str, answer: Sequence[str], fails_midway: bool
) -> Tuple[int, List[str]]:
    if not id_text.isdigit() or int(id_text) not in config.models:
        return FAILED, [f"NVPM ERROR: Power mode id {id_text} is not in {CONF}"]
    settings = config.models[int(id_text)]
    if any(_gates_otherwise(machine, config, setting) for setting in settings):
        return _ask(machine, id_text, answer)
    apply(machine, config, settings, 3 if fails_midway else None)
    if fails_midway:
        return FAILED, ["NVPM ERROR: failed to set power mode!"]
    machine.write(STATUS, f"pmode:{int(id_text):04d}")
    return 0, []


def _gates_otherwise(machine: Machine, config: Config, setting: Setting) -> bool:
    path = _path(machine, config, setting.parameter, setting.argument)
    return setting.argument.endswith("_PG_MASK") and path is not None and machine.read(path) != setting.value


def _ask(machine: Machine, id_text: str, answer: Sequence[str]) -> Tuple[int, List[str]]:
    lines = [
        "NVPM WARN: Golden image context is already created",
        f"NVPM WARN: Reboot required for changing to this power mode: {id_text}",
        "NVPM WARN: DO YOU WANT TO REBOOT NOW? enter YES/yes to confirm:",
    ]
    if not answer:
        return FAILED, [*lines, "NVPM ERROR: bad input!"]
    if answer[0].strip() not in {"YES", "yes"}:
        return FAILED, lines
    machine.path(REBOOTED).write_text(id_text)
    return 0, lines


def apply(machine: Machine, config: Config, settings: Sequence[Setting], limit: Optional[int] = None) -> None:
    """Write a power model's settings: cores, then clocks; ``limit`` stops after so many writes."""
    for done, (path, text) in enumerate(_writes(machine, config, settings)):
        if limit is not None and done >= limit:
            return
        machine.write(path, text)


def _writes(machine: Machine, config: Config, settings: Sequence[Setting]) -> Iterator[Tuple[str, str]]:
    for setting in settings:
        path = _path(machine, config, setting.parameter, setting.argument)
        if path is None or setting.argument.endswith("_PG_MASK"):
            continue
        if config.kinds[setting.parameter] == "FILE":
            if machine.read(path) != setting.value:
                yield path, setting.value
        elif setting.argument == "MAX_FREQ":  # with its MIN_FREQ, in the order that the kernel accepts
            yield from _clock_writes(machine, config, setting, settings)


def _clock_writes(machine: Machine, config: Config, top: Setting, settings: Sequence[Setting]) -> List[Tuple[str, str]]:
    path = _path(machine, config, top.parameter, "MAX_FREQ")
    table_path = _path(machine, config, top.parameter, "FREQ_TABLE")
    if path is None:
        return []
    if table_path is None:  # the memory clock's cap
        return [(path, str(LONGEST if int(top.value) == UNCAPPED else top.value))]
    table = tuple(int(word) for word in machine.read(table_path).split())
    high = _on_table(table, int(top.value))
    low_path = _path(machine, config, top.parameter, "MIN_FREQ")
    wanted = [each.value for each in settings if each[:2] == (top.parameter, "MIN_FREQ")]
    writes = [(path, str(high))]
    if wanted and low_path is not None:
        low = (low_path, str(min(_on_table(table, int(wanted[0])), high)))
        raising = high >= int(machine.read(low_path))
        writes = [*writes, low] if raising else [low, *writes]
    return writes


def _on_table(table: Tuple[int, ...], value: int) -> int:
    return max(table) if value == UNCAPPED else nearest(table, value)


def main(root: str) -> int:
    """The program behind a root's /usr/sbin/nvpmodel."""
    from .kernel import KernelMachine

    answer = sys.stdin.read().splitlines() if "-m" in sys.argv and not sys.stdin.isatty() else []
    code, lines = command(KernelMachine(root), sys.argv[1:], answer)
    sys.stdout.write("".join(line + "\n" for line in lines))
    return code
