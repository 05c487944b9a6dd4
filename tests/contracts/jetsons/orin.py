"""Jetson AGX Orin 64GB and Orin Nano 8GB under JetPack 5 and 6: Cortex-A78AE clusters of four, ga10b, hwmon sensors."""

from typing import Tuple

from .records import UNCAPPED, Board, Chip, Cluster, Emc, Gpu, Rail, Stock, Zone, release, steps

JP5 = release(35, "4.1", "t186ref", "Tue Aug  1 19:57:35 UTC 2023")
JP6 = release(
    36,
    "4.3",
    "generic",
    "Wed Jan  8 01:49:37 UTC 2025",
    "# KERNEL_VARIANT: oot",
    "TARGET_USERSPACE_LIB_DIR=nvidia",
    "TARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia",
)
AGX_KHZ = steps(115200, 2188800, 76800, 2201600)
AGX_HZ = steps(114750000, 1236750000, 102000000, 1300500000)
AGX_JP6_HZ = steps(306000000, 1224000000, 102000000, 1300500000)
NANO_KHZ = steps(115200, 1497600, 76800, 1510400)
NANO_HZ = (306000000, 408000000, 510000000, 612000000, 624750000)
SUPER_KHZ = steps(115200, 1728000, 76800)
SUPER_HZ = steps(306000000, 1020000000, 102000000)
EMC_HZ = (204000000, 665600000, 2133000000, 3199000000)
NANO_EMC_HZ = EMC_HZ[:3]
ISO_CAP, CLOCK_CAP = "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", "/sys/kernel/nvpmodel_clk_cap/emc"
LOWEST_KHZ = 729600

JP5_ZONES = (
    Zone("CPU-therm", 48093),
    Zone("GPU-therm", 44875),
    Zone("CV0-therm", 0, again=True),
    Zone("CV1-therm", 0, again=True),
    Zone("CV2-therm", 0, again=True),
    Zone("SOC0-therm", 46343),
    Zone("SOC1-therm", 46562),
    Zone("SOC2-therm", 45437),
    Zone("tj-therm", 48093),
)
JP6_ZONES = tuple(Zone(zone.name.lower().replace("therm", "thermal"), *zone[1:]) for zone in JP5_ZONES)

AGX_CHIPS = (
    Chip("1-0040", (Rail("VDD_GPU_SOC", 20032, 116), Rail("VDD_CPU_CV", 20032, 20), Rail("VIN_SYS_5V0", 4992, 504))),
    Chip("1-0041", (Rail("NC", 0, 0), Rail("VDDQ_VDD2_1V8AO", 20056, 40), Rail("NC", 0, 0))),
)
NANO_CHIPS = (
    Chip("1-0040", (Rail("VDD_IN", 5080, 936), Rail("VDD_CPU_GPU_CV", 5072, 120), Rail("VDD_SOC", 5072, 280))),
)


def clusters(cores: int, khz: Tuple[int, ...]) -> Tuple[Cluster, ...]:
    firsts = range(0, cores, 4)
    return tuple(Cluster(cpu, tuple(range(cpu, min(cpu + 4, cores))), khz, f"CPU_A78_{cpu // 4}") for cpu in firsts)


def jp5_gpu(hz: Tuple[int, ...]) -> Gpu:
    return Gpu("/sys/devices/17000000.ga10b", "17000000.ga10b", "ga10b", hz, "/sys/devices/gpu.0", load_permille=412)


def jp6_gpu(hz: Tuple[int, ...]) -> Gpu:
    return Gpu(
        device="/sys/devices/platform/bus@0/17000000.gpu",
        device_name="17000000.gpu",
        node="gpu",
        hz=hz,
        alias="/sys/devices/platform/gpu.0",
        knext="/sys/devices/platform/17000000.gpu/devfreq_dev",
        load_permille=412,
    )


def agx_stock(uncapped_emc: int) -> Tuple[Stock, ...]:
    cores = tuple(range(12))
    return (
        Stock(0, "MAXN", cores, UNCAPPED, UNCAPPED, uncapped_emc, LOWEST_KHZ, 0, 0),
        Stock(1, "MODE_15W", cores[:4], 1113600, 408000000, 2133000000, LOWEST_KHZ, 0, 248),
        Stock(2, "MODE_30W", cores[:8], 1728000, 612000000, uncapped_emc, LOWEST_KHZ, 0, 240),
        Stock(3, "MODE_50W", cores, 1497600, 816000000, uncapped_emc, LOWEST_KHZ, 0, 0),
    )


AGX_ORIN_JP5 = Board(
    name="agx-orin-jp5",
    catalogue="agx-orin-64gb",
    model="NVIDIA Jetson AGX Orin Developer Kit",
    compatible=("nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234"),
    release=JP5,
    l4t="35.4.1",
    clusters=clusters(12, AGX_KHZ),
    gpu=jp5_gpu(AGX_HZ),
    emc=Emc(EMC_HZ, ISO_CAP),
    chips=AGX_CHIPS,
    total="VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0 + VDDQ_VDD2_1V8AO",
    zones=JP5_ZONES,
    conf="nvpmodel_p3701_0005.conf",
    stock=agx_stock(0),
    default=2,
    mem_total_kb=64349224,
)
AGX_ORIN_JP6 = AGX_ORIN_JP5._replace(
    name="agx-orin-jp6",
    release=JP6,
    l4t="36.4.3",
    gpu=jp6_gpu(AGX_JP6_HZ),
    emc=Emc(EMC_HZ, CLOCK_CAP, EMC_HZ[-1]),
    zones=JP6_ZONES,
    stock=agx_stock(UNCAPPED),
)
ORIN_NANO_JP5 = Board(
    name="orin-nano-jp5",
    catalogue="orin-nano",
    model="NVIDIA Orin Nano Developer Kit",
    compatible=("nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234"),
    release=JP5,
    l4t="35.4.1",
    clusters=clusters(6, NANO_KHZ),
    gpu=jp5_gpu(NANO_HZ),
    emc=Emc(NANO_EMC_HZ, ISO_CAP),
    chips=NANO_CHIPS,
    total="VDD_IN",
    zones=JP5_ZONES,
    conf="nvpmodel_p3767_0003.conf",
    cores_in_conf="core",
    stock=(
        Stock(0, "15W", tuple(range(6)), UNCAPPED, UNCAPPED, 0, LOWEST_KHZ, 0, 240, 2),
        Stock(1, "7W", tuple(range(4)), 960000, 408000000, 2133000000, LOWEST_KHZ, 0, 252, 2),
    ),
    default=0,
    mem_total_kb=7802352,
)
ORIN_NANO_JP6 = ORIN_NANO_JP5._replace(
    name="orin-nano-jp6",
    catalogue="orin-nano-super",
    model="NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
    compatible=("nvidia,p3768-0000+p3767-0005-super", "nvidia,p3767-0005", "nvidia,tegra234"),
    release=JP6,
    l4t="36.4.3",
    clusters=clusters(6, SUPER_KHZ),
    gpu=jp6_gpu(SUPER_HZ),
    emc=Emc(EMC_HZ, CLOCK_CAP, EMC_HZ[-1]),
    zones=JP6_ZONES,
    conf="nvpmodel_p3767_0003_super.conf",
    stock=(
        Stock(0, "15W", tuple(range(6)), 1497600, 612000000, 2133000000, LOWEST_KHZ, 0, 240, 2),
        Stock(1, "25W", tuple(range(6)), 1344000, 918000000, 3199000000, LOWEST_KHZ, 0, 240, 2),
        Stock(2, "MAXN_SUPER", tuple(range(6)), UNCAPPED, UNCAPPED, UNCAPPED, LOWEST_KHZ, 0, 240, 2),
    ),
    default=2,
)
