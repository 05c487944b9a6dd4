"""nvpmodel's file and answers, as NVIDIA's boards write them."""

import pytest

from fedge.powerd import nvpmodel
from fedge.powerd.knobs import CpufreqPolicy, Gpu, Hardware, KnobState
from fedge.powerd.machine import Machine
from fedge.powerd.mode_records import PowerdRefusal
from fedge.powerd.write_plan import EmcFiles, EmcState, LimitFiles, LimitSpan

CONF = """
# Copyright
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /sys/devices/system/cpu/cpu0/online
CORE_1 /sys/devices/system/cpu/cpu1/online
< PARAM TYPE=FILE NAME=FBP_POWER_GATING >
FBP_PG_MASK /sys/devices/gpu.0/fbp_pg_mask
< PARAM TYPE=FILE NAME=GPU_POWER_CONTROL_ENABLE >
GPU_PWR_CNTL_EN /sys/devices/gpu.0/power/control
<PARAM TYPE=CLOCK NAME=EMC >
MAX_FREQ_KNEXT /sys/kernel/nvpmodel_clk_cap/emc
< PARAM TYPE=CLOCK NAME=CPU_A78_1 >
MAX_FREQ_KNEXT /sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq
< PARAM TYPE=CLOCK NAME=DLA0_CORE >
MAX_FREQ /sys/kernel/nvpmodel_clk_cap/dla0_core

< POWER_MODEL ID=2 NAME=MAXN_SUPER >
CPU_ONLINE CORE_0 1
CPU_ONLINE CORE_1 0
FBP_POWER_GATING FBP_PG_MASK 2
GPU_POWER_CONTROL_ENABLE GPU_PWR_CNTL_EN on
CPU_A78_1 MAX_FREQ 1728000
GPU MAX_FREQ -1
EMC MAX_FREQ 0
DLA0_CORE MAX_FREQ 614400000
< POWER_MODEL ID=9 NAME=OTHER >
FBP_POWER_GATING FBP_PG_MASK 0x02
GPU_POWER_CONTROL_ENABLE GPU_PWR_CNTL_EN on
# mandatory
< PM_CONFIG DEFAULT=9 >
"""


TABLE_KHZ = (400000, 800000, 1200000, 1600000)


class Answers(Machine):
    """A machine without files whose nvpmodel says ``output`` (None: there is no nvpmodel)."""

    def __init__(self, output=None, code=0, files=()) -> None:
        super().__init__("/nonexistent")
        self.output, self.code, self.files = output, code, dict(files)

    def read(self, path: str) -> str:
        if path not in self.files:
            raise OSError(2, "No such file", path)
        return self.files[path]

    def run(self, command):
        if self.output is None:
            raise OSError("no command nvpmodel")
        return self.code, self.output


def test_the_file_is_read_as_its_boards_write_it():
    conf = nvpmodel.parse_conf(CONF)
    assert [(model.id, model.name) for model in conf.models] == [(2, "MAXN_SUPER"), (9, "OTHER")]
    assert conf.default == 9
    caps = nvpmodel.read_caps(conf, conf.models[0])
    assert caps == nvpmodel.PresetCaps({0: True, 1: False}, {4: 1728000}, nvpmodel.UNCAPPED, nvpmodel.UNCAPPED)
    assert nvpmodel.read_caps(conf, conf.models[1]) == nvpmodel.PresetCaps({}, {}, None, None)


@pytest.mark.parametrize("text", ["", "< POWER_MODEL NAME=X >\nA B C", "A B C\n< PM_CONFIG >\n< POWER_MODEL ID=x >"])
def test_a_broken_file_has_no_presets(text):
    assert nvpmodel.parse_conf(text).models == ()


def test_masks_are_compared_as_numbers_and_with_the_file_where_the_preset_is_unknown():
    conf = nvpmodel.parse_conf(CONF)
    present, other = conf.models
    machine = Answers()
    assert not nvpmodel.needs_reboot(machine, conf, other, present)
    assert nvpmodel.needs_reboot(machine, conf, other, None)
    files = {"/sys/devices/gpu.0/fbp_pg_mask": "2", "/sys/devices/gpu.0/power/control": "on"}
    assert not nvpmodel.needs_reboot(Answers(files=files), conf, other, None)
    files["/sys/devices/gpu.0/fbp_pg_mask"] = "3"
    assert nvpmodel.needs_reboot(Answers(files=files), conf, other, None)


@pytest.mark.parametrize(
    ("output", "preset_id"),
    [
        ("NV Power Mode: MODE_15W_6CORE\n2\n", 2),
        ("NVPM WARN: fan mode is not set!\nNV Fan Mode:quiet\nNV Power Mode: MAXN\n0\n", 0),
        ("NVPM ERROR: Error opening emc_iso_cap: 13\n", None),
        (None, None),
    ],
)
def test_the_query_gives_the_id_and_without_an_answer_the_status_file_does(output, preset_id):
    assert nvpmodel.query_preset_id(Answers(output)) == preset_id
    assert nvpmodel.query_preset_id(Answers(files={"/var/lib/nvpmodel/status": "pmode:0008"})) == 8


@pytest.mark.parametrize(
    ("code", "output", "kind"),
    [
        (0, "Running in chroot, ignoring request", "container"),
        (255, "Reboot required\nDO YOU WANT TO REBOOT NOW?\nNVPM ERROR: bad input!", "reboot-needed"),
        (0, "Golden image context is already created", "reboot-needed"),
        (1, "NVPM ERROR: failed", "did-not-stick"),
        (0, None, "did-not-stick"),
    ],
)
def test_a_switch_that_did_nothing_is_refused_with_its_kind(code, output, kind):
    nvpmodel.switch_preset(Answers(""), 1)  # without a word it went well
    with pytest.raises(PowerdRefusal) as caught:
        nvpmodel.switch_preset(Answers(output, code), 1)
    assert caught.value.kind == kind


def test_a_core_that_is_on_against_the_preset_is_named():
    state = KnobState({0: True, 1: True}, (), {}, EmcState())
    hardware = Hardware({}, cpu_khz=(), gpus=(), emc="none", emc_files=EmcFiles(), emc_hz=())
    for on, unmet in ((False, ("core 1 online", 1)), (True, None)):
        assert nvpmodel.find_unmet(nvpmodel.PresetCaps({1: on}, {}, None, None), state, hardware) == unmet


def find_unmet(high, caps, table):
    policy = CpufreqPolicy("policy0", core=0, files=LimitFiles("low", "high"), span=LimitSpan(0, high), table=table)
    state = KnobState({0: True}, (policy,), {}, EmcState())
    hardware = Hardware({}, cpu_khz=table, gpus=(), emc="none", emc_files=EmcFiles(), emc_hz=())
    return nvpmodel.find_unmet(nvpmodel.PresetCaps({}, caps, None, None), state, hardware)


@pytest.mark.parametrize("high", TABLE_KHZ)
@pytest.mark.parametrize("cap", [nvpmodel.UNCAPPED, *range(200000, 1800000, 100000)])
def test_a_clock_is_capped_as_the_preset_has_it_where_no_value_of_the_table_lies_between(high, cap):
    wanted = TABLE_KHZ[-1] if cap == nvpmodel.UNCAPPED else cap
    between = [khz for khz in TABLE_KHZ if min(high, wanted) < khz < max(high, wanted)]
    beside = not between and (cap != nvpmodel.UNCAPPED or high == wanted)
    if cap in TABLE_KHZ:
        beside = high == cap
    assert (find_unmet(high, {0: cap}, TABLE_KHZ) is None) == beside


@pytest.mark.parametrize(
    ("cap_file", "cap_hz", "unmet"),
    [
        ("/cap", 800000000, None),
        ("/cap", 1600000000, ("emc cap Hz", 1600000000)),
        ("/cap", 0, ("emc cap Hz", 1600000000)),
        ("", 1600000000, None),
    ],
)
def test_the_memorys_cap_is_looked_at_where_the_board_has_one(cap_file, cap_hz, unmet):
    table = (400000000, 800000000, 1600000000)
    state = KnobState({0: True}, (), {}, EmcState(cap_hz=cap_hz))
    files = EmcFiles(cap=cap_file)
    hardware = Hardware({}, cpu_khz=(), gpus=(), emc="none", emc_files=files, emc_hz=table)
    assert nvpmodel.find_unmet(nvpmodel.PresetCaps({}, {}, None, 800000000), state, hardware) == unmet


@pytest.mark.parametrize(("high", "unmet"), [(306000000, None), (612000000, ("gpu Hz", 612000999))])
def test_a_gpu_above_the_presets_cap_is_named(high, unmet):
    gpu = Gpu("gpu", LimitFiles("low", "high", 999), (306000000, 612000000))
    hardware = Hardware({}, cpu_khz=(), gpus=(gpu,), emc="none", emc_files=EmcFiles(), emc_hz=())
    state = KnobState({0: True}, (), {"gpu": LimitSpan(0, high)}, EmcState())
    assert nvpmodel.find_unmet(nvpmodel.PresetCaps({}, {}, 306000000, None), state, hardware) == unmet


@pytest.mark.parametrize(
    ("caps", "table"), [({}, (400, 800)), ({0: 400}, ()), ({0: nvpmodel.UNCAPPED}, ()), ({0: 800}, (400, 800))]
)
def test_a_clock_without_a_cap_or_a_table_is_as_the_preset_has_it(caps, table):
    assert find_unmet(800, caps, table) is None


def test_numbers_and_lines_without_an_end_are_left_out():
    number, spaces = "0x" + "f" * 4000, " " * 100_000
    text = f"< POWER_MODEL ID={number} NAME=A >\n< POWER_MODEL ID=3 NAME=B >\nGPU MAX_FREQ {number}\n< A{spaces}\n"

    conf = nvpmodel.parse_conf(text)

    assert [model.name for model in conf.models] == ["B"]
    assert nvpmodel.read_caps(conf, conf.models[0]).gpu_hz is None
