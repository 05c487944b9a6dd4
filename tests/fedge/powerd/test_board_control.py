"""A board of four cores in two clusters, in memory, with a kernel that refuses, rounds and hides as real ones do."""

import fnmatch
import json
import runpy

import pytest

from fedge.powerd import board_control as of_board
from fedge.powerd.board_control import BoardControl
from fedge.powerd.machine import Machine
from fedge.powerd.mode_records import HardwareOptions, KnobTables, Mode, PowerdRefusal

CPU, GPU = "/sys/devices/system/cpu", "/sys/class/devfreq/17000000.gv11b"
EMC, CAP = "/sys/kernel/debug/bpmp/debug/clk/emc", "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap"
CONF = """# comment
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_1 /sys/devices/system/cpu/cpu1/online
CORE_2 /sys/devices/system/cpu/cpu2/online
CORE_3 /sys/devices/system/cpu/cpu3/online
< PARAM TYPE=FILE NAME=TPC_POWER_GATING >
TPC_PG_MASK /sys/devices/gpu.0/tpc_pg_mask
<PARAM TYPE=CLOCK NAME=CPU_A >
MAX_FREQ /sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq
< PARAM TYPE=CLOCK NAME=GPU >
MAX_FREQ /sys/devices/17000000.gv11b/devfreq/17000000.gv11b/max_freq
< PARAM TYPE=CLOCK NAME=EMC >
MAX_FREQ /sys/kernel/nvpmodel_emc_cap/emc_iso_cap
< POWER_MODEL ID=0 NAME=MAXN >
CPU_ONLINE CORE_1 1
CPU_ONLINE CORE_2 1
CPU_ONLINE CORE_3 1
TPC_POWER_GATING TPC_PG_MASK 0
CPU_A MAX_FREQ -1
GPU MAX_FREQ -1
EMC MAX_FREQ 0
< POWER_MODEL ID=8 NAME=10W >
CPU_ONLINE CORE_1 1
CPU_ONLINE CORE_2 0
CPU_ONLINE CORE_3 0
TPC_POWER_GATING TPC_PG_MASK 0x0
CPU_A MAX_FREQ 800000
GPU MAX_FREQ 510000000
EMC MAX_FREQ 1600000000
< POWER_MODEL ID=3 NAME=7W >
CPU_ONLINE CORE_1 1
TPC_POWER_GATING TPC_PG_MASK 252
< PM_CONFIG DEFAULT=8 >
"""


class Kernel(Machine):
    """Files in a dictionary; ``faults`` by pattern of a path: what a write does instead."""

    def __init__(self) -> None:
        super().__init__("/nonexistent")
        self.files = {
            "/proc/device-tree/model": "NVIDIA Jetson X",
            "/proc/device-tree/compatible": "nvidia,x\0nvidia,tegra194",
            "/etc/nv_tegra_release": "# R35 (release), REVISION: 4.1, GCID: 1",
            "/etc/nvpmodel.conf": CONF,
            f"{GPU}/device/of_node/name": "gv11b",
            f"{GPU}/available_frequencies": "114750000 510000000 1109250000",
            f"{GPU}/min_freq": "114750000",
            f"{GPU}/max_freq": "1109250000",
            "/sys/class/devfreq/nvenc/device/of_node/name": "nvenc",
            f"{EMC}/rate": "1866000000",
            f"{EMC}/max_rate": "1866000000",
            f"{EMC}/mrq_rate_locked": "0",
            CAP: "0",
            "/sys/kernel/debug/bpmp/debug/emc/possible_rates": "204000 1600000 1866000 2133000 (kHz)",
            "/sys/devices/pwm-fan/target_pwm": "100",
            "/proc/sys/vm/drop_caches": "0",
            "/sys/class/thermal/thermal_zone0/type": "CPU-therm",
            "/sys/class/thermal/thermal_zone0/temp": "41500",
            "/sys/class/thermal/thermal_zone1/type": "PMIC-Die",
            "/sys/class/thermal/thermal_zone1/temp": "100000",
            "/sys/class/thermal/thermal_zone2/type": "CV-therm",
        }
        for core in range(4):
            self.files[f"{CPU}/cpu{core}/online"] = "1"
        self.add_policy(0)
        self.add_policy(2)
        self.faults, self.writes, self.preset = {}, [], 0
        self.nvpmodel = "works"

    def add_policy(self, core: int) -> None:
        extra = " 2000000" if core else ""
        folder = f"{CPU}/cpufreq/policy{core}"
        self.files[f"{folder}/scaling_available_frequencies"] = f"400000 800000 1200000 1600000{extra}"
        self.files[f"{folder}/scaling_min_freq"] = "400000"
        self.files[f"{folder}/scaling_max_freq"] = "2000000" if core else "1600000"

    def read(self, path: str) -> str:
        if path not in self.files:
            raise OSError(2, "No such file", path)
        return self.files[path]

    def exists(self, path: str) -> bool:
        return any(name == path or name.startswith(path + "/") for name in self.files)

    def glob(self, pattern: str):
        depth = pattern.count("/")
        names = {"/".join(name.split("/")[: depth + 1]) for name in self.files if name.count("/") >= depth}
        return sorted(name for name in names if fnmatch.fnmatchcase(name, pattern))

    def write(self, path: str, text: str) -> None:
        self.writes.append((path, text))
        fault = next((self.faults[key] for key in self.faults if fnmatch.fnmatchcase(path, key)), None)
        self.read(path)
        if fault == "refuse":
            raise OSError(22, "Invalid argument", path)
        if fault != "ignore":
            self.set(path, text)

    def set(self, path: str, text: str) -> None:
        folder, name = path.rsplit("/", 1)
        if name.endswith("_freq"):
            low, high = (name.replace("max", word).replace("min", word) for word in ("min", "max"))
            pair = {
                low: int(self.files.get(f"{folder}/{low}", "0")),
                high: int(self.files[f"{folder}/{high}"]),
                name: int(text),
            }
            if pair[low] > pair[high]:
                raise OSError(22, "Invalid argument", path)
        if name == "rate" and self.files[f"{EMC}/mrq_rate_locked"] != "1":
            return
        self.files[path] = text
        if name == "online":
            self.plug()

    def plug(self) -> None:
        on = "1" in (self.files[f"{CPU}/cpu2/online"], self.files[f"{CPU}/cpu3/online"])
        folder = f"{CPU}/cpufreq/policy2"
        if on and not self.exists(folder):
            self.add_policy(2)
        if not on:
            self.files = {name: text for name, text in self.files.items() if not name.startswith(folder)}

    def run(self, command):
        if command[1] == "-q":
            return 0, f"NVPM WARN: fan mode is not set!\nNV Power Mode: SOME\n{self.preset}\n"
        if self.nvpmodel == "container":
            return 0, "Running in chroot, ignoring request\n"
        if self.nvpmodel == "asks":
            return 255, "NVPM WARN: Reboot required\nDO YOU WANT TO REBOOT NOW? NVPM ERROR: bad input!\n"
        self.preset = int(command[2])
        if self.nvpmodel == "works":
            self.apply()
        return 0, ""

    def apply(self) -> None:
        small = self.preset == 8
        for core in (1, 2, 3):
            self.set(f"{CPU}/cpu{core}/online", "0" if small and core > 1 else "1")
        self.set(f"{CPU}/cpufreq/policy0/scaling_max_freq", "800000" if small else "1600000")
        self.set(f"{GPU}/max_freq", "510000000" if small else "1109250000")
        self.set(CAP, "1600000000" if small else "0")


@pytest.fixture
def kernel():
    return Kernel()


def board(kernel, **options):
    return BoardControl(kernel, HardwareOptions(**options))


def test_it_finds_what_the_board_has(kernel) -> None:
    found = board(kernel)
    assert found.identity() == {
        "model": "NVIDIA Jetson X",
        "compatible": ["nvidia,x", "nvidia,tegra194"],
        "l4t": "35.4.1",
    }
    rates = (204000000, 1600000000, 1866000000)  # what lies above the clock's maximum is left out
    clocks = (114750000, 510000000, 1109250000)
    assert found.tables() == KnobTables((1, 2, 3, 4), (400000, 800000, 1200000, 1600000), clocks, rates)
    assert found.allowed_tables().cores == (2, 3, 4)
    assert found.mode() == Mode(4, 1600000, 1109250000, 1866000000)
    assert found.limits()["cpu"]["policy2"] == {"min_khz": 400000, "max_khz": 2000000}


def test_a_machine_that_is_no_jetson_is_refused(kernel) -> None:
    kernel.files["/proc/device-tree/model"] = kernel.files["/proc/device-tree/compatible"] = "x86"
    with pytest.raises(PowerdRefusal, match="no Jetson"):
        board(kernel)


@pytest.mark.parametrize("control", ["lock", "cap"])
@pytest.mark.parametrize("lock_min", [False, True])
def test_a_mode_is_read_back_as_set_and_everything_comes_back(kernel, control, lock_min) -> None:
    found, before = board(kernel, emc=control), dict(kernel.files)
    state = json.loads(json.dumps(found.snapshot()))
    for mode in (Mode(2, 400000, 114750000, 204000000), Mode(4, 1200000, 510000000, 1600000000)):
        assert found.set_mode(mode, lock_min) == mode
        low = found.limits()["cpu"]["policy0"]["min_khz"]
        assert low == (mode.cpu_khz if lock_min else 400000)
    assert found.put_back(state) == []
    assert kernel.files == before


def test_a_cluster_with_another_table_gets_its_value_at_or_below(kernel) -> None:
    kernel.files[f"{CPU}/cpufreq/policy2/scaling_available_frequencies"] = "400000 700000 1300000"
    found = board(kernel)
    assert found.set_mode(Mode(cpu_khz=1200000)).cpu_khz == 1200000
    assert found.limits()["cpu"]["policy2"]["max_khz"] == 700000


def test_the_policy_of_a_cluster_that_comes_on_is_set_too(kernel) -> None:
    found = board(kernel)
    found.set_mode(Mode(cores=2))
    found.set_mode(Mode(cores=4, cpu_khz=800000))
    assert found.limits()["cpu"]["policy2"]["max_khz"] == 800000


def test_core_0_and_the_masks_are_never_written(kernel) -> None:
    found = board(kernel, floor_cores=1)
    found.set_mode(Mode(cores=1))
    found.set_preset("10W")
    assert not [path for path, _ in kernel.writes if "cpu0" in path or "mask" in path]


@pytest.mark.parametrize("fault", ["ignore", "refuse"])
@pytest.mark.parametrize(
    "path", [f"{CPU}/cpu3/online", "*policy0/scaling_max*", "*policy2/scaling_min*", f"{GPU}/max_freq", "*rate*"]
)
def test_a_write_that_does_not_stick_is_undone(kernel, path, fault) -> None:
    found, before = board(kernel), dict(kernel.files)
    kernel.faults = {path: fault}
    with pytest.raises(PowerdRefusal, match="the state before is set again") as caught:
        found.set_mode(Mode(2, 800000, 510000000, 204000000), lock_min=True)
    assert caught.value.kind == "did-not-stick"
    assert caught.value.got is not None
    assert kernel.files == before


def test_when_the_undoing_fails_too_the_text_says_so(kernel) -> None:
    found = board(kernel)
    found.set_mode(Mode(cpu_khz=800000))
    kernel.faults = {f"{GPU}/max_freq": "ignore", "*policy0/scaling_max_freq": "raises later"}
    write = kernel.write

    def stuck(path, text):
        if path.endswith("policy0/scaling_max_freq") and text == "800000":
            raise OSError(5, "Input/output error")
        write(path, text)

    kernel.write = stuck
    with pytest.raises(PowerdRefusal, match=r"NOT put back: .*policy0/scaling_max_freq: it is 1600000, not 800000"):
        found.set_mode(Mode(cpu_khz=1600000, gpu_hz=510000000))


@pytest.mark.parametrize(
    "snapshot", [None, [], {"cpu": 3}, {"online": {"x": 1}}, {"emc": {}}, {"cpu": {"policy9": [1, float("inf")]}}]
)
def test_putting_back_nonsense_never_raises_and_is_told(kernel, snapshot) -> None:
    assert board(kernel).put_back(snapshot)


def test_putting_back_goes_on_past_what_cannot_be_read(kernel) -> None:
    found, state = board(kernel), board(kernel).snapshot()
    found.set_mode(Mode(2, 800000, 510000000, 204000000))
    del kernel.files[f"{CPU}/cpufreq/policy0/scaling_min_freq"]
    left = found.put_back(state)
    assert len(left) == 1
    assert "policy0/scaling_min_freq" in left[0]
    assert kernel.files[f"{CPU}/cpufreq/policy0/scaling_max_freq"] == "1600000"
    assert kernel.files[f"{GPU}/max_freq"] == "1109250000"
    assert kernel.files[f"{CPU}/cpu3/online"] == "1"


def test_presets_are_told_as_table_values(kernel) -> None:
    presets = {preset.name: preset for preset in board(kernel).presets()}
    assert presets["MAXN"].mode == Mode(4)
    assert presets["10W"].mode == Mode(2, 800000, 510000000, 1600000000)
    assert [name for name in presets if presets[name].needs_reboot] == ["7W"]
    assert [name for name in presets if presets[name].default] == ["10W"]
    assert board(kernel).preset() == presets["MAXN"]


def test_a_preset_is_set_and_put_back_through_nvpmodel(kernel) -> None:
    found, before, state = board(kernel), dict(kernel.files), board(kernel).snapshot()
    found.set_mode(Mode(4, 1600000, 1109250000, 204000000), lock_min=True)
    assert found.set_preset("10w") == Mode(2, 800000, 510000000, 1600000000)
    assert found.put_back(state) == []
    assert kernel.preset == 0
    assert {**kernel.files, f"{EMC}/rate": ""} == {**before, f"{EMC}/rate": ""}  # unlocked, the kernel's own


def test_after_a_reboot_the_preset_alone_can_be_put_back(kernel) -> None:
    assert board(kernel).put_back({"nvpmodel": 8}) == []
    assert kernel.preset == 8


@pytest.mark.parametrize(
    ("answer", "name", "kind"),
    [
        ("container", "10W", "container"),
        ("asks", "10W", "reboot-needed"),
        ("lies", "10W", "did-not-stick"),
        ("works", "7W", "reboot-needed"),
        ("works", "15W", "off-table"),
    ],
)
def test_a_preset_that_cannot_be_set_leaves_everything_as_it_was(kernel, answer, name, kind) -> None:
    found, before = board(kernel), dict(kernel.files)
    kernel.nvpmodel = answer
    with pytest.raises(PowerdRefusal) as caught:
        found.set_preset(name)
    assert caught.value.kind == kind
    assert kernel.files == before


def test_temperatures_leave_out_zones_without_a_reading_unless_they_are_needed(kernel) -> None:
    assert board(kernel).temperatures() == {"CPU-therm": 41.5}
    for zone in ("CV-therm", "GPU-therm"):
        with pytest.raises(PowerdRefusal, match=zone) as caught:
            board(kernel, needed_zones=(zone,)).temperatures()
        assert caught.value.kind == "sensor-lost"


def test_the_fan_is_put_back_up_or_down_where_a_change_told_its_speed(kernel) -> None:
    found, file, told = board(kernel), "/sys/devices/pwm-fan/target_pwm", []
    for percent, raw in ((100, "255"), (0, "0")):
        found.set_fan(percent, told.append)
        assert kernel.files[file] == raw
        assert found.put_back(dict(found.snapshot(), **told.pop())) == []
        assert kernel.files[file] == "100"
    found.set_fan(100)
    assert found.put_back(found.snapshot()) == []  # of one that was never told, nothing is known
    assert kernel.files[file] == "255"
    with pytest.raises(PowerdRefusal, match="from 0 to 100"):
        found.set_fan(101)


def test_a_fan_that_cannot_be_read_is_not_set_and_one_that_is_gone_is_told(kernel) -> None:
    found, file = board(kernel), "/sys/devices/pwm-fan/target_pwm"
    kernel.files[file] = "much"
    with pytest.raises(PowerdRefusal, match="could not be put back"):
        found.set_fan(50)
    assert kernel.writes == []
    del kernel.files[file]
    assert found.put_back({"fan": 100}) == ["fan: the fan's file is gone; it was at 100 of 255"]


def test_a_change_that_is_not_undone_names_what_is_left(kernel) -> None:
    found, file = board(kernel), "/sys/devices/pwm-fan/target_pwm"
    kernel.faults = {file: "refuse"}
    with pytest.raises(PowerdRefusal) as caught:
        found.set_fan(50)
    assert len(caught.value.left) == 1
    assert "target_pwm" in caught.value.left[0]
    kernel.faults = {f"{GPU}/max_freq": "ignore"}
    with pytest.raises(PowerdRefusal) as caught:
        found.set_mode(Mode(gpu_hz=510000000))
    assert caught.value.left == ()


def test_caches_are_dropped_without_waiting_for_the_disk(kernel, monkeypatch) -> None:
    monkeypatch.setattr("os.sync", lambda: pytest.fail("it waits"))
    anew = runpy.run_path(of_board.__file__)["BoardControl"]  # one that cannot have kept the real one
    anew(kernel, HardwareOptions()).drop_caches()
    assert kernel.writes == [("/proc/sys/vm/drop_caches", "3")]


def test_a_preset_whose_way_back_is_not_known_is_not_set(kernel, monkeypatch) -> None:
    found, works = board(kernel), kernel.run
    monkeypatch.setattr(kernel, "run", lambda command: (1, "") if command[1] == "-q" else works(command))
    with pytest.raises(PowerdRefusal, match="could not be put back") as caught:
        found.set_preset("10W")
    assert caught.value.kind == "failed"
    assert (kernel.preset, kernel.writes) == (0, [])


def test_when_all_zones_are_gone_the_sensors_are_lost_unless_there_never_were_any(kernel) -> None:
    found = board(kernel)
    kernel.files = {path: text for path, text in kernel.files.items() if "thermal" not in path}
    with pytest.raises(PowerdRefusal, match="all thermal zones are gone") as caught:
        found.temperatures()
    assert caught.value.kind == "sensor-lost"
    assert board(kernel).temperatures() == {}
