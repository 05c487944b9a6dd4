"""Discovery below a small folder: names of GPUs, ways to the memory clock, formats of its table."""

import pytest

from fedge.powerd import knobs
from fedge.powerd.config import Config
from fedge.powerd.machine import Machine
from fedge.powerd.write_plan import EmcFiles, EmcState, LimitSpan

BPMP, OVERRIDE = "/sys/kernel/debug/bpmp/debug", "/sys/kernel/debug/clk/override.emc"


def machine_with(folder, files) -> Machine:
    for path, text in files.items():
        file = folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return Machine(str(folder))


@pytest.mark.parametrize("text", ["204000 1600000 (kHz)", "204000000 1600000000", "1600000\n204000\n204000\n"])
def test_the_memory_table_is_in_hz_whatever_its_file_says(tmp_path, text):
    machine = machine_with(tmp_path, {f"{BPMP}/emc/possible_rates": text})
    assert knobs.read_emc_table(machine, Config(emc_table_hz=(1,))) == (204000000, 1600000000)


def test_without_a_table_the_daemons_file_counts_and_then_the_highest_rate(tmp_path):
    machine = machine_with(tmp_path, {"/sys/kernel/debug/tegra_bwmgr/emc_max_rate": "1600000000"})
    assert knobs.read_emc_table(machine, Config(emc_table_hz=(408000000, 204000000))) == (204000000, 408000000)
    assert knobs.read_emc_table(machine, Config()) == (1600000000,)
    assert knobs.read_emc_table(Machine(str(tmp_path / "none")), Config()) == ()


@pytest.mark.parametrize(
    ("files", "wanted", "control"),
    [
        ((f"{BPMP}/clk/emc/rate", f"{BPMP}/clk/emc/mrq_rate_locked"), "lock", "lock"),
        ((f"{OVERRIDE}/clk_update_rate", f"{OVERRIDE}/clk_state"), "lock", "lock"),
        ((knobs.EMC_CAPS[0],), "lock", "cap"),
        ((f"{BPMP}/clk/emc/rate", f"{BPMP}/clk/emc/mrq_rate_locked", knobs.EMC_CAPS[1]), "cap", "cap"),
        ((f"{BPMP}/clk/emc/rate", f"{BPMP}/clk/emc/mrq_rate_locked"), "cap", "none"),
        ((), "lock", "none"),
    ],
)
def test_the_memory_is_controlled_as_wanted_where_the_board_can(tmp_path, files, wanted, control):
    machine = machine_with(tmp_path, dict.fromkeys(files, "0"))
    assert knobs.choose_emc_control(knobs.find_emc_files(machine), wanted) == control


def test_a_memory_that_cannot_be_locked_is_not_locked(tmp_path):
    assert knobs.read_emc(Machine(str(tmp_path)), EmcFiles()) == EmcState(0, 0, locked=False, cap_hz=0)


def test_gpus_are_told_by_their_device_tree_name_and_thors_are_described_only(tmp_path):
    files = {}
    for name, node in [("17000000.gpu", "gpu"), ("15480000.nvdec", "nvdec"), ("gpu-gpc-0", "gpu")]:
        files[f"/sys/class/devfreq/{name}/device/of_node/name"] = node
        files[f"/sys/class/devfreq/{name}/available_frequencies"] = "306000000 612000000"
    found = knobs.find_gpus(machine_with(tmp_path, files))
    assert [(gpu.name, gpu.table) for gpu in found] == [("17000000.gpu", (306000000, 612000000)), ("gpu-gpc-0", ())]


@pytest.mark.parametrize("span", [LimitSpan(0, 0), LimitSpan(306000000, 612000000)])
def test_limits_that_a_thor_does_not_show_are_0(tmp_path, span):
    folder = f"{knobs.DEVFREQ}/gpu-gpc-0"
    shown = {f"{folder}/{name}_freq": str(hz) for name, hz in (("min", span.low), ("max", span.high)) if hz}
    machine = machine_with(tmp_path, {**shown, f"{folder}/device/of_node/name": "gpu"})
    gpus = knobs.find_gpus(machine)
    hardware = knobs.Hardware({}, cpu_khz=(), gpus=gpus, emc="none", emc_files=EmcFiles(), emc_hz=())
    assert knobs.read_state(machine, hardware).gpus == {"gpu-gpc-0": span}


def test_a_policy_without_a_core_that_is_on_does_not_count(tmp_path):
    files = {}
    for core in (0, 4, 8, 10):
        folder = f"/sys/devices/system/cpu/cpufreq/policy{core}"
        files[f"{folder}/scaling_min_freq"], files[f"{folder}/scaling_max_freq"] = "1", "2"
    files["/sys/devices/system/cpu/cpufreq/policy8/affected_cpus"] = "9"
    on = {0: True, 4: False, 8: False, 9: True, 10: True}
    found = knobs.read_policies(machine_with(tmp_path, files), on)
    assert [policy.name for policy in found] == ["policy0", "policy8", "policy10"]


def test_core_0_without_a_switch_is_on(tmp_path):
    files = {"/sys/devices/system/cpu/cpu1/online": "0", "/sys/devices/system/cpu/cpu0/topology/core_id": "0"}
    machine = machine_with(tmp_path, {**files, "/sys/devices/system/cpu/cpuidle/current_driver": "none"})
    assert knobs.read_online(machine, knobs.find_core_files(machine)) == {0: True, 1: False}
