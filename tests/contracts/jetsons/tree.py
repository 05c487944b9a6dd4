"""Writes a board's record as a tree of files and links at the documented paths, in its state after a start."""

import json
import os
import sys
from pathlib import Path
from typing import Dict, Iterator, Mapping, Tuple, Union

from . import nvpmodel
from .kernel import BPMP_EMC, CPUS, DRIFT, FACTS, FAULTS, LOG, OFFLINE, OVERRIDE, POLICIES, KernelMachine, ranges
from .records import Board, Chip, Cluster

BOOT_ID = "6f2f1c1e-7a0b-4d0c-9b1a-3c5d7e9f1a2b"
BASE = "/sys/firmware/devicetree/base"
TESTS, PROJECT = Path(__file__).resolve().parents[2], Path(__file__).resolve().parents[3]
MASKS = ("tpc_pg_mask", "fbp_pg_mask")
OVER_CURRENT = ("under-voltage", "average over-current", "instantaneous over-current")
PROGRAM = """\
#!{python}
import sys
sys.dont_write_bytecode = True
sys.path[:0] = [{project!r}, {tests!r}]
from pathlib import Path
from contracts.jetsons.nvpmodel import main
sys.exit(main(str(Path(__file__).resolve().parents[2])))
"""


class Root:
    """A folder that stands for ``/``; files are given by the board's absolute paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, path: str) -> Path:
        return self.folder / path.lstrip("/")

    def file(self, path: str, text: Union[str, int]) -> None:
        """A file of one value, ended as the kernel does."""
        self.raw(path, f"{text}\n")

    def raw(self, path: str, text: str) -> None:
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text)

    def files(self, folder: str, values: Mapping[str, Union[str, int]]) -> None:
        for name, value in values.items():
            self.file(f"{folder}/{name}", value)

    def link(self, path: str, target: str) -> None:
        """A relative link, so that the tree may be moved."""
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).symlink_to(os.path.relpath(str(self.path(target)), str(self.path(path).parent)))


def build_board(board: Board, folder: Union[str, Path]) -> Path:
    """Make ``folder/name``; it must not be there yet."""
    top = Path(folder).resolve() / board.name
    top.mkdir(parents=True)
    root = Root(top)
    for part in (_identity, _proc, _cpus, _gpu, _emc, _power, _thermal, _fan, _over_current, _nvpmodel, _notes):
        part(root, board)
    _start(root, board)
    return top


def contents(root: Union[str, Path]) -> Dict[str, bytes]:
    """Every file's bytes and every link's target, to compare a root before and after; without the log and faults."""
    skipped = {LOG, FAULTS, DRIFT}
    return {path: content for path, content in _walk(str(root)) if path not in skipped}


def _walk(top: str, below: str = "") -> Iterator[Tuple[str, bytes]]:
    """Plain strings, since a root is hundreds of files and tests look at it thousands of times."""
    for entry in sorted(os.scandir(top + below), key=lambda entry: entry.name):
        path = f"{below}/{entry.name}"
        if entry.is_symlink():
            yield path, b"-> " + os.readlink(entry.path).encode()  # noqa: PTH115 (3.9 and up)
        elif entry.is_dir():
            yield from _walk(top, path)
        elif entry.is_file():
            yield path, _bytes(entry.path)


def _bytes(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(file, 65536), b""))
    finally:
        os.close(file)


def _identity(root: Root, board: Board) -> None:
    root.raw(f"{BASE}/model", board.model + "\0")
    root.raw(f"{BASE}/compatible", "".join(word + "\0" for word in board.compatible))
    root.link("/proc/device-tree", BASE)
    root.raw("/etc/nv_tegra_release", board.release)


def _proc(root: Root, board: Board) -> None:
    root.file("/proc/sys/kernel/random/boot_id", BOOT_ID)
    root.file("/proc/sys/vm/drop_caches", 0)
    total = board.mem_total_kb
    lines = [("MemTotal", total), ("MemFree", total // 2), ("MemAvailable", total * 3 // 4), ("Cached", total // 5)]
    root.raw("/proc/meminfo", "".join(f"{name + ':':<16}{kb:>8} kB\n" for name, kb in lines))
    times = "2255 34 2290 22625563 6290 127 456 0 0 0"
    root.raw("/proc/stat", "".join(f"{cpu} {times}\n" for cpu in ["cpu ", *(f"cpu{n}" for n in board.cpus)]))


def _cpus(root: Root, board: Board) -> None:
    for cluster in board.clusters:
        _policy(root, cluster)
        for cpu in cluster.cpus:
            root.link(f"{CPUS}/cpu{cpu}/cpufreq", f"{POLICIES}/policy{cluster.policy}")
            if cpu or board.cpu0_switch:
                root.file(f"{CPUS}/cpu{cpu}/online", 1)
    for name in ("possible", "present", "online"):
        root.file(f"{CPUS}/{name}", ranges(board.cpus))
    root.file(f"{CPUS}/offline", "")


def _policy(root: Root, cluster: Cluster) -> None:
    lowest, highest = cluster.khz[0], cluster.khz[-1]
    cpus = " ".join(map(str, cluster.cpus))
    root.files(
        f"{POLICIES}/policy{cluster.policy}",
        {
            "scaling_available_frequencies": " ".join(map(str, cluster.khz)) + " ",
            "scaling_min_freq": lowest,
            "scaling_max_freq": highest,
            "scaling_cur_freq": highest,
            "scaling_governor": "schedutil",
            "scaling_available_governors": "conservative ondemand userspace powersave performance schedutil ",
            "cpuinfo_min_freq": lowest,
            "cpuinfo_max_freq": highest,
            "related_cpus": cpus,
            "affected_cpus": cpus,
        },
    )


def _gpu(root: Root, board: Board) -> None:
    gpu = board.gpu
    node = f"{BASE}/{gpu.node}@{gpu.device_name.split('.')[0]}"
    root.raw(f"{node}/name", gpu.node + "\0")
    root.link(f"{gpu.device}/of_node", node)
    root.file(f"{gpu.device}/load", gpu.load_permille)
    root.file(f"{gpu.device}/power/control", "auto")
    for mask, value in zip(MASKS, (board.found.tpc_mask, board.found.fbp_mask)):
        if value is not None:
            root.file(f"{gpu.device}/{mask}", value)
    devfreq = f"{gpu.device}/devfreq/{gpu.device_name}"
    _devfreq(root, devfreq, gpu.hz)
    root.link(f"{devfreq}/device", gpu.device)
    root.link(f"/sys/class/devfreq/{gpu.device_name}", devfreq)
    root.link(gpu.alias, gpu.device)
    if gpu.knext:
        second = gpu.knext.rsplit("/", 1)[0]
        if second != gpu.device:
            root.link(second, gpu.device)
        root.link(f"{gpu.device}/devfreq_dev", devfreq)
    _encoder(root)


def _devfreq(root: Root, folder: str, hz: Tuple[int, ...]) -> None:
    root.files(
        folder,
        {
            "available_frequencies": " ".join(map(str, hz)),
            "min_freq": hz[0],
            "max_freq": hz[-1],
            "cur_freq": hz[-1],
            "governor": "nvhost_podgov",
        },
    )


def _encoder(root: Root) -> None:
    """Another devfreq device, which is no GPU."""
    device = "/sys/devices/13e10000.host1x/154c0000.nvenc"
    root.raw(f"{BASE}/host1x/nvenc@154c0000/name", "nvenc\0")
    root.link(f"{device}/of_node", f"{BASE}/host1x/nvenc@154c0000")
    _devfreq(root, f"{device}/devfreq/154c0000.nvenc", (115200000, 601600000))
    root.link(f"{device}/devfreq/154c0000.nvenc/device", device)
    root.link("/sys/class/devfreq/154c0000.nvenc", f"{device}/devfreq/154c0000.nvenc")


def _emc(root: Root, board: Board) -> None:
    emc = board.emc
    root.file(emc.cap, emc.free)
    if emc.bpmp:
        edges = {"rate": emc.hz[-1], "min_rate": emc.hz[0], "max_rate": emc.hz[-1], "mrq_rate_locked": 0, "state": 1}
        root.files(BPMP_EMC, edges)
        rates = " ".join(str(hz // 1000) for hz in emc.hz)
        root.file("/sys/kernel/debug/bpmp/debug/emc/possible_rates", f"{rates} (kHz)")
        return
    root.files(OVERRIDE, {"clk_update_rate": emc.hz[-1], "clk_rate": emc.hz[-1], "clk_state": 0})
    root.files(
        "/sys/kernel/debug/tegra_bwmgr",
        {"emc_rate": emc.hz[-1], "emc_min_rate": emc.hz[0], "emc_max_rate": emc.hz[-1]},
    )


def _platform(board: Board) -> str:
    """Where platform devices lie under the board's kernel."""
    if board.jetpack4:
        return "/sys/devices"
    return "/sys/devices/platform/bus@0" if board.l4t.startswith("36") else "/sys/devices/platform"


def _power(root: Root, board: Board) -> None:
    for number, chip in enumerate(board.chips):
        bus = chip.address.split("-")[0]
        device = f"{_platform(board)}/c240000.i2c/i2c-{bus}/{chip.address}"
        driver = "ina3221x" if board.jetpack4 else "ina3221"
        root.link(f"/sys/bus/i2c/drivers/{driver}/{chip.address}", device)
        if board.jetpack4:
            _iio(root, f"{device}/iio:device{number}", chip)
            root.link(f"/sys/bus/iio/devices/iio:device{number}", f"{device}/iio:device{number}")
        else:
            _hwmon(root, device, 3 + number, "ina3221", _hwmon_channels(chip))


def _iio(root: Root, folder: str, chip: Chip) -> None:
    root.file(f"{folder}/name", "ina3221x")
    for channel, rail in enumerate(chip.rails):
        root.files(
            folder,
            {
                f"rail_name_{channel}": rail.label,
                f"in_voltage{channel}_input": rail.mv,
                f"in_current{channel}_input": rail.ma,
                f"in_power{channel}_input": rail.mv * rail.ma // 1000,
                f"crit_current_limit_{channel}": 32760,
                f"warn_current_limit_{channel}": 32760,
            },
        )


def _hwmon_channels(chip: Chip) -> Dict[str, Union[str, int]]:
    files: Dict[str, Union[str, int]] = {}
    for channel, rail in enumerate(chip.rails, 1):
        files[f"in{channel}_label"] = rail.label
        files[f"in{channel}_input"] = rail.mv
        files[f"in{channel}_enable"] = 1
        files[f"in{channel + 3}_input"] = rail.ma * 5 // 1000  # across the shunt of 5 milliohm
        files[f"curr{channel}_input"] = rail.ma
        files[f"curr{channel}_crit"] = files[f"curr{channel}_max"] = 32760
        files[f"shunt{channel}_resistor"] = 5000
    files["in7_label"] = "sum of shunt voltages"
    files["in7_input"] = sum(rail.ma for rail in chip.rails) * 5 // 1000
    return files


def _hwmon(root: Root, device: str, number: int, name: str, files: Dict[str, Union[str, int]]) -> None:
    folder = f"{device}/hwmon/hwmon{number}"
    root.files(folder, {"name": name, **files})
    root.link(f"{folder}/device", device)
    root.link(f"/sys/class/hwmon/hwmon{number}", folder)


def _thermal(root: Root, board: Board) -> None:
    for number, zone in enumerate(board.zones):
        folder = f"/sys/devices/virtual/thermal/thermal_zone{number}"
        root.files(folder, {"type": zone.name, "temp": zone.milli_c})
        root.link(f"/sys/class/thermal/thermal_zone{number}", folder)


def _fan(root: Root, board: Board) -> None:
    if board.jetpack4:
        root.files("/sys/devices/pwm-fan", {"target_pwm": 0, "cur_pwm": 0, "temp_control": 1})
    else:
        _hwmon(root, "/sys/devices/platform/pwm-fan", 2, "pwmfan", {"pwm1": 87})


def _over_current(root: Root, board: Board) -> None:
    if not board.jetpack4:
        files: Dict[str, Union[str, int]] = {}
        for number in range(1, len(OVER_CURRENT) + 1):
            files[f"oc{number}_event_cnt"], files[f"oc{number}_throt_en"] = 0, 1
        _hwmon(root, f"{_platform(board)}/soctherm-oc-event", 1, "soctherm_oc", files)


def _nvpmodel(root: Root, board: Board) -> None:
    root.raw(f"/etc/nvpmodel/{board.conf}", nvpmodel.conf_text(board))
    root.link(nvpmodel.CONF, f"/etc/nvpmodel/{board.conf}")
    root.raw(nvpmodel.STATUS, f"pmode:{board.default:04d}\n")
    root.raw("/usr/sbin/nvpmodel", PROGRAM.format(python=sys.executable, project=str(PROJECT), tests=str(TESTS)))
    root.path("/usr/sbin/nvpmodel").chmod(0o755)


def _notes(root: Root, board: Board) -> None:
    again = [f"/sys/devices/virtual/thermal/thermal_zone{n}/temp" for n, zone in enumerate(board.zones) if zone.again]
    facts = {"emc_hz": board.emc.hz, "emc_free": board.emc.free, "again": again}
    root.raw(FACTS, json.dumps(facts))
    root.raw(LOG, "")
    root.path(OFFLINE).mkdir()


def _start(root: Root, board: Board) -> None:
    """What the board does when it starts: nvpmodel applies the default preset."""
    machine = KernelMachine(str(root.folder))
    config = nvpmodel.parse(nvpmodel.conf_text(board))
    nvpmodel.apply(machine, config, config.models[config.default])
    root.raw(LOG, "")
