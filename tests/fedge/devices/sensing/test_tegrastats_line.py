"""Every known form of a tegrastats line is read, and no text at all makes the parser fail; made-up values."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedge.devices.sensing.tegrastats_line import parse_line, parse_rails_mw

NANO = (
    "RAM 1500/3956MB (lfb 12x4MB) SWAP 10/1978MB (cached 0MB) IRAM 0/252kB(lfb 252kB) CPU [12%@1479,4%@1428,off,off] "
    "EMC_FREQ 8%@1600 GR3D_FREQ 37%@921 APE 25 PLL@39C CPU@41.5C PMIC@100C GPU@38C AO@45.5C thermal@40.25C "
    "POM_5V_IN 4940/2500 POM_5V_GPU 10/20 POM_5V_CPU 400/410"
)
XAVIER = (
    "RAM 1903/31919MB (lfb 6000x4MB) SWAP 0/15959MB (cached 0MB) CPU [1%@1190,2%@1190,off,off,off,off,off,off] "
    "EMC_FREQ 0% GR3D_FREQ 0% AO@32.5C GPU@32C Tboard@32C Tdiode@34.75C AUX@31.5C CPU@33.5C thermal@32.9C PMIC@100C "
    "GPU 50/10 CPU 200/210 SOC 300/310 CV 0/0 VDDRQ 100/110 SYS5V 400/410"
)
ORIN = (
    "03-04-2023 10:00:01 RAM 4722/30536MB (lfb 5x4MB) SWAP 0/15268MB (cached 0MB) CPU [0%@729,off,off,off] "
    "EMC_FREQ 1%@2133 GR3D_FREQ 0%@[305,306] VIC_FREQ 115 APE 174 CV0@-256C CPU@47.6C Tboard@36C tj@47.656C "
    "VDD_GPU_SOC 2400mW/2400mW VDD_CPU_CV 400mW/400mW VIN_SYS_5V0 3000mW/3000mW NC 0mW/0mW "
    "VDDQ_VDD2_1V8AO 600mW/600mW NC 0mW/0mW"
)
ORIN_NANO = (
    "03-04-2024 10:00:01 RAM 2000/7620MB (lfb 54x4MB) SWAP 0/3810MB (cached 0MB) CPU [3%@1728,0%@1728,off,off] "
    "EMC_FREQ @2133 GR3D_FREQ 84%@[713] NVENC off NVDEC off OFA off APE 200 cpu@47.2C soc2@46C gpu@46.3C tj@47.9C "
    "VDD_IN 5060mW/5060mW VDD_CPU_GPU_CV 500mW/500mW VDD_SOC 1400mW/1400mW"
)
THOR = (
    "03-04-2026 10:00:01 RAM 3000/125000MB (lfb 9x4MB) CPU [0%,5%,off]@2601 EMC_FREQ @4266 GR3D_FREQ @[1574,1574,off] "
    "cpu@49.75C/49.75C tj@51.2C/51.2C VDD_GPU 6000mW/6100mW/6200mW VIN 28000mW/14000mW/28000mW"
)
TX2_OLD = "RAM 2136/7846MB (lfb 1157x4MB) cpu [0%@345,off,off,7%@345] EMC 3%@1600 APE 150 GR3D 12%@114 VDD_IN 1913/1913"


def test_a_nano_of_jetpack_4_is_read_whole() -> None:
    line = parse_line(NANO)

    assert line.cpu_mhz == 1479
    assert (line.mem_load, line.mem_mhz, line.gpu_load, line.gpu_mhz) == (0.08, 1600, 0.37, 921)
    assert line.temperatures_c == {"PLL": 39, "CPU": 41.5, "PMIC": 100, "GPU": 38, "AO": 45.5, "thermal": 40.25}
    assert line.rails_w == {"POM_5V_IN": 4.94, "POM_5V_GPU": 0.01, "POM_5V_CPU": 0.4}


def test_an_agx_xavier_has_no_clocks_beside_its_loads() -> None:
    line = parse_line(XAVIER)

    assert (line.mem_load, line.mem_mhz, line.gpu_load, line.gpu_mhz) == (0, None, 0, None)
    assert line.rails_w == {"GPU": 0.05, "CPU": 0.2, "SOC": 0.3, "CV": 0, "VDDRQ": 0.1, "SYS5V": 0.4}


def test_an_agx_orin_has_two_gpu_clusters_units_and_sensors_that_are_off() -> None:
    line = parse_line(ORIN)

    assert (line.gpu_load, line.gpu_mhz) == (0, 306)
    assert line.temperatures_c == {"CV0": -256, "CPU": 47.6, "Tboard": 36, "tj": 47.656}
    assert line.rails_w == {"VDD_GPU_SOC": 2.4, "VDD_CPU_CV": 0.4, "VIN_SYS_5V0": 3.0, "VDDQ_VDD2_1V8AO": 0.6}


def test_an_orin_nano_of_jetpack_6_is_read() -> None:
    line = parse_line(ORIN_NANO)

    assert (line.mem_load, line.mem_mhz, line.gpu_load, line.gpu_mhz) == (None, 2133, 0.84, 713)
    assert line.rails_w == {"VDD_IN": 5.06, "VDD_CPU_GPU_CV": 0.5, "VDD_SOC": 1.4}


def test_the_newest_lines_have_one_clock_for_all_cores_and_a_peak_per_rail() -> None:
    line = parse_line(THOR)

    assert line.cpu_mhz == 2601
    assert (line.gpu_load, line.gpu_mhz) == (None, 1574)
    assert line.temperatures_c == {"cpu": 49.75, "tj": 51.2}
    assert line.rails_w == {"VDD_GPU": 6, "VIN": 28}


def test_the_oldest_names_of_the_engines_are_known() -> None:
    line = parse_line(TX2_OLD)

    assert (line.mem_load, line.mem_mhz, line.gpu_load, line.gpu_mhz) == (0.03, 1600, 0.12, 114)
    assert line.cpu_mhz == 345
    assert line.rails_w == {"VDD_IN": 1.913}


@pytest.mark.parametrize(
    ("text", "load", "mhz"),
    [
        ("GR3D_FREQ 0%@[305,305]", 0, 305),
        ("GR3D 0%@114", 0, 114),
        ("GR3D_FREQ 99%", 0.99, None),
        ("GR3D_FREQ 45%@318", 0.45, 318),
        ("GR3D_FREQ @[314,off,315]", None, 315),
        ("GR3D_FREQ @[off,off]", None, None),
        ("GR3D_FREQ off", None, None),
        ("GR3D2_FREQ 5%@3", None, None),
        ("", None, None),
    ],
)
def test_the_gpu_is_read_in_all_its_forms(text: str, load: float | None, mhz: float | None) -> None:
    line = parse_line(f"RAM 1/2MB {text} APE 150")

    assert (line.gpu_load, line.gpu_mhz) == (load, mhz)


def test_a_rail_is_no_memory_and_nothing_that_is_not_connected() -> None:
    assert parse_rails_mw("RAM 1/2MB IRAM 0/252kB(lfb 252kB) NC 0mW/0mW VDD_IN 4940/4941") == {"VDD_IN": 4940}


@given(st.text(alphabet=st.sampled_from(" @[]%,/mWCoff0123456789.-RAMGPU3D_FREQEMC\n")) | st.text())
@example("CPU [")
@example("GR3D_FREQ %@[]")
@example("RAM ١/٢MB CPU@١C")
def test_any_text_is_read_without_an_error(text: str) -> None:
    line = parse_line(text)

    assert all(math.isfinite(value) for value in (*line.temperatures_c.values(), *line.rails_w.values()))


@given(st.sampled_from([NANO, XAVIER, ORIN, ORIN_NANO, THOR]), st.integers(0, 400), st.integers(0, 100), st.text())
def test_a_damaged_line_is_read_as_far_as_it_goes(line: str, start: int, cut: int, put: str) -> None:
    damaged = parse_line(f"{line[:start]}{put}{line[start + cut :]}")

    assert all(math.isfinite(watts) and watts >= 0 for watts in damaged.rails_w.values())
    assert all(math.isfinite(at_c) for at_c in damaged.temperatures_c.values())


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{1,12}", fullmatch=True), st.integers(0, 200_000), max_size=8))
def test_rails_come_back_as_they_were_printed(rails_mw: dict[str, int]) -> None:
    rails_mw = {name: mw for name, mw in rails_mw.items() if name != "NC"}
    for form in ("{0} {1}/{1}", "{0} {1}mW/{1}mW", "{0} {1}mW/{1}mW/{1}mW"):
        text = " ".join(form.format(name, mw) for name, mw in rails_mw.items())

        assert parse_line(f"RAM 1/2MB {text}").rails_w == {name: mw / 1e3 for name, mw in rails_mw.items()}
