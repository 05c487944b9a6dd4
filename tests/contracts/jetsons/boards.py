"""The recorded boards: Nano and TX2 under JetPack 4, Xaviers under 5, AGX Orin and Orin Nano under 5 and 6.

Nano: one Cortex-A57 cluster, gm20b, iio power sensors, the memory clock by bwmgr. TX2: a Cortex-A57 and a Denver 2
cluster, gp10b, two iio power sensors. Xavier: clusters of two Carmel cores, gv11b, hwmon sensors. Orin: Cortex-A78AE
clusters of four, ga10b, hwmon sensors.
"""

from typing import Tuple

from .records import UNCAPPED, Board, Chip, Cluster, Emc, Gpu, Rail, Stock, Zone, release, steps

ISO_CAP, CLOCK_CAP = "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", "/sys/kernel/nvpmodel_clk_cap/emc"
JP5 = release(35, "4.1", "t186ref", "Tue Aug  1 19:57:35 UTC 2023")


def clusters(cores: int, size: int, name: str, khz: Tuple[int, ...]) -> Tuple[Cluster, ...]:
    """Return clusters of ``size`` cores with one table, the last one perhaps smaller."""
    firsts = range(0, cores, size)
    return tuple(
        Cluster(cpu, tuple(range(cpu, min(cpu + size, cores))), khz, f"{name}_{cpu // size}") for cpu in firsts
    )


NANO_KHZ = (
    *(102000, 204000, 307200, 403200, 518400, 614400, 710400, 825600),
    *(921600, 1036800, 1132800, 1224000, 1326000, 1428000, 1479000),
)

NANO = Board(
    name="nano",
    catalogue="nano",
    model="NVIDIA Jetson Nano Developer Kit",
    compatible=("nvidia,p3449-0000-b00+p3448-0000-b00", "nvidia,jetson-nano", "nvidia,tegra210"),
    release=release(32, "7.1", "t210ref", "Sat Feb 19 17:05:08 UTC 2022"),
    l4t="32.7.1",
    clusters=(Cluster(0, (0, 1, 2, 3), NANO_KHZ, "CPU_A57"),),
    cpu0_switch=False,
    gpu=Gpu(
        device="/sys/devices/57000000.gpu",
        device_name="57000000.gpu",
        node="gpu",
        hz=steps(76800000, 921600000, 76800000),
        alias="/sys/devices/gpu.0",
    ),
    emc=Emc(
        hz=(204000000, 408000000, 665600000, 800000000, 1065600000, 1331200000, 1600000000),
        cap=ISO_CAP,
        bpmp=False,
    ),
    chips=(
        Chip("6-0040", (Rail("POM_5V_IN", 5080, 424), Rail("POM_5V_GPU", 5080, 40), Rail("POM_5V_CPU", 5080, 104))),
    ),
    total="POM_5V_IN",
    zones=(
        Zone("AO-therm", 45500),
        Zone("CPU-therm", 37500),
        Zone("GPU-therm", 36000),
        Zone("PLL-therm", 34500),
        Zone("PMIC-Die", 100000),  # a constant of the driver's, not a temperature
        Zone("thermal-fan-est", 36750),
    ),
    conf="nvpmodel_t210_jetson-nano.conf",
    stock=(
        Stock(0, "MAXN", (0, 1, 2, 3), UNCAPPED, UNCAPPED, 0),
        Stock(1, "5W", (0, 1), 918000, 640000000, 1600000000),
    ),
    default=0,
    mem_total_kb=4059436,
)

TX2_KHZ = steps(345600, 2035200, 153600)

TX2 = Board(
    name="tx2",
    catalogue="tx2",
    model="quill",
    compatible=("nvidia,p2597-0000+p3310-1000", "nvidia,quill", "nvidia,tegra186"),
    release=release(32, "7.1", "t186ref", "Sat Feb 19 17:07:00 UTC 2022"),
    l4t="32.7.1",
    clusters=(Cluster(0, (0, 3, 4, 5), TX2_KHZ, "CPU_A57"), Cluster(1, (1, 2), TX2_KHZ, "CPU_DENVER")),
    gpu=Gpu(
        device="/sys/devices/17000000.gp10b",
        device_name="17000000.gp10b",
        node="gp10b",
        hz=(
            *(114750000, 216750000, 318750000, 420750000, 522750000, 624750000, 726750000),
            *(854250000, 930750000, 1032750000, 1122000000, 1236750000, 1300500000),
        ),
        alias="/sys/devices/gpu.0",
    ),
    emc=Emc(
        hz=(
            *(40800000, 68000000, 102000000, 204000000, 408000000, 665600000),
            *(800000000, 1062400000, 1331200000, 1600000000, 1866000000),
        ),
        cap=ISO_CAP,
    ),
    chips=(
        Chip("0-0040", (Rail("VDD_SYS_GPU", 19080, 8), Rail("VDD_SYS_SOC", 19080, 23), Rail("VDD_4V0_WIFI", 4792, 4))),
        Chip("0-0041", (Rail("VDD_IN", 19072, 145), Rail("VDD_SYS_CPU", 19072, 12), Rail("VDD_SYS_DDR", 19048, 31))),
    ),
    total="VDD_IN",
    zones=(
        Zone("BCPU-therm", 43000),
        Zone("MCPU-therm", 43000),
        Zone("GPU-therm", 41500),
        Zone("PLL-therm", 43000),
        Zone("Tboard_tegra", 38000),
        Zone("Tdiode_tegra", 40500),
        Zone("PMIC-Die", 100000),  # a constant of the driver's, not a temperature
        Zone("thermal-fan-est", 42500),
    ),
    conf="nvpmodel_t186.conf",
    stock=(
        Stock(0, "MAXN", (0, 1, 2, 3, 4, 5), UNCAPPED, UNCAPPED, 0),
        Stock(1, "MAXQ", (0, 3, 4, 5), 1200000, 850000000, 1331200000),
        Stock(2, "MAXP_CORE_ALL", (0, 1, 2, 3, 4, 5), 1400000, 1120000000, 1600000000),
        Stock(3, "MAXP_CORE_ARM", (0, 3, 4, 5), 2000000, 1120000000, 1600000000),
    ),
    default=3,
    mem_total_kb=8042404,
)

XAVIER_ZONES = (
    Zone("CPU-therm", 41500),
    Zone("GPU-therm", 40500),
    Zone("AUX-therm", 40000),
    Zone("AO-therm", 41000),
    Zone("thermal-fan-est", 40800),
)
XAVIER_NX_KHZ = steps(115200, 1881600, 76800, 1907200)
AGX_XAVIER_KHZ = steps(115200, 2188800, 76800, 2265600)


def xavier_gpu(hz: Tuple[int, ...]) -> Gpu:
    return Gpu(
        device="/sys/devices/17000000.gv11b",
        device_name="17000000.gv11b",
        node="gv11b",
        hz=hz,
        alias="/sys/devices/gpu.0",
        knext="/sys/devices/17000000.gv11b/devfreq_dev",
        load_permille=993,
    )


def nx_stock(id_: int, name: str, cores: int, cpu_khz: int, gpu_hz: int, emc_hz: int) -> Stock:
    return Stock(id_, name, tuple(range(cores)), cpu_khz, gpu_hz, emc_hz, cpu_min_khz=1190400, tpc_mask=1)


def agx_xavier_stock(id_: int, name: str, cores: int, cpu_khz: int, gpu_hz: int, emc_hz: int, tpc: int = 0) -> Stock:
    lowest_gpu_hz = 318750000 if name == "MODE_15W_DESKTOP" else 0
    return Stock(id_, name, tuple(range(cores)), cpu_khz, gpu_hz, emc_hz, 1200000, lowest_gpu_hz, tpc)


XAVIER_NX = Board(
    name="xavier-nx",
    catalogue="xavier-nx",
    model="NVIDIA Jetson Xavier NX Developer Kit",
    compatible=("nvidia,p3509-0000+p3668-0000", "nvidia,p3668-0000", "nvidia,tegra194"),
    release=JP5,
    l4t="35.4.1",
    clusters=clusters(6, 2, "CPU_DENVER", XAVIER_NX_KHZ),
    gpu=xavier_gpu(
        (
            *(114750000, 204000000, 306000000, 408000000, 510000000, 599250000, 701250000, 752250000),
            *(803250000, 854250000, 905250000, 956250000, 1007250000, 1058250000, 1109250000),
        )
    ),
    emc=Emc(hz=(204000000, 1600000000, 1866000000), cap=ISO_CAP),
    chips=(Chip("7-0040", (Rail("VDD_IN", 5032, 876), Rail("VDD_CPU_GPU_CV", 5032, 152), Rail("VDD_SOC", 5032, 240))),),
    total="VDD_IN",
    zones=XAVIER_ZONES,
    conf="nvpmodel_t194_p3668.conf",
    stock=(
        nx_stock(0, "MODE_15W_2CORE", 2, 1907200, 1109250000, 1600000000),
        nx_stock(1, "MODE_15W_4CORE", 4, 1420800, 1109250000, 1600000000),
        nx_stock(2, "MODE_15W_6CORE", 6, 1420800, 1109250000, 1600000000),
        nx_stock(3, "MODE_10W_2CORE", 2, 1497600, 803250000, 1600000000),
        nx_stock(4, "MODE_10W_4CORE", 4, 1190400, 803250000, 1600000000),
        nx_stock(5, "MODE_10W_DESKTOP", 4, 1907200, 510000000, 1600000000),
        nx_stock(6, "MODE_20W_2CORE", 2, 1907200, 1109250000, 1866000000),
        nx_stock(7, "MODE_20W_4CORE", 4, 1420800, 1109250000, 1866000000),
        nx_stock(8, "MODE_20W_6CORE", 6, 1420800, 1109250000, 1866000000),
    ),
    default=5,
    mem_total_kb=7953204,
)

AGX_XAVIER = Board(
    name="agx-xavier",
    catalogue="agx-xavier",
    model="Jetson-AGX",
    compatible=("nvidia,p2822-0000+p2888-0004", "nvidia,galen", "nvidia,tegra194"),
    release=JP5,
    l4t="35.4.1",
    clusters=clusters(8, 2, "CPU_DENVER", AGX_XAVIER_KHZ),
    gpu=xavier_gpu(
        (
            *(114750000, 216750000, 318750000, 420750000, 522750000, 624750000, 675750000),
            *(828750000, 905250000, 1032750000, 1198500000, 1236750000, 1338750000, 1377000000),
        )
    ),
    emc=Emc(
        hz=(
            *(204000000, 408000000, 665600000, 800000000, 1065600000),
            *(1331200000, 1600000000, 1866000000, 2133000000),
        ),
        cap=ISO_CAP,
    ),
    chips=(
        Chip("1-0040", (Rail("GPU", 19112, 16), Rail("CPU", 19112, 40), Rail("SOC", 19112, 72))),
        Chip("1-0041", (Rail("CV", 19120, 8), Rail("VDDRQ", 19120, 24), Rail("SYS5V", 19088, 88))),
    ),
    total="GPU + CPU + SOC + CV + VDDRQ + SYS5V",
    zones=(*XAVIER_ZONES, Zone("Tboard_tegra", 38000), Zone("Tdiode_tegra", 40250)),
    conf="nvpmodel_t194.conf",
    stock=(
        agx_xavier_stock(0, "MAXN", 8, UNCAPPED, UNCAPPED, 0),
        agx_xavier_stock(1, "MODE_10W", 2, 1200000, 520000000, 1065600000, tpc=5),
        agx_xavier_stock(2, "MODE_15W", 4, 1200000, 670000000, 1331200000),
        agx_xavier_stock(3, "MODE_30W_ALL", 8, 1200000, 900000000, 1600000000),
        agx_xavier_stock(4, "MODE_30W_6CORE", 6, 1450000, 900000000, 1600000000),
        agx_xavier_stock(5, "MODE_30W_4CORE", 4, 1780000, 900000000, 1600000000),
        agx_xavier_stock(6, "MODE_30W_2CORE", 2, 2100000, 900000000, 1600000000),
        agx_xavier_stock(7, "MODE_15W_DESKTOP", 4, 2188800, 670000000, 1331200000),
    ),
    default=7,
    mem_total_kb=32689056,
)

JP6 = release(
    36,
    "4.3",
    "generic",
    "Wed Jan  8 01:49:37 UTC 2025",
    "# KERNEL_VARIANT: oot",
    "TARGET_USERSPACE_LIB_DIR=nvidia",
    "TARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia",
)
AGX_ORIN_KHZ = steps(115200, 2188800, 76800, 2201600)
AGX_ORIN_HZ = steps(114750000, 1236750000, 102000000, 1300500000)
AGX_ORIN_JP6_HZ = steps(306000000, 1224000000, 102000000, 1300500000)
ORIN_NANO_KHZ = steps(115200, 1497600, 76800, 1510400)
ORIN_NANO_HZ = (306000000, 408000000, 510000000, 612000000, 624750000)
SUPER_KHZ = steps(115200, 1728000, 76800)
SUPER_HZ = steps(306000000, 1020000000, 102000000)
ORIN_EMC_HZ = (204000000, 665600000, 2133000000, 3199000000)
ORIN_NANO_EMC_HZ = ORIN_EMC_HZ[:3]
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

AGX_ORIN_CHIPS = (
    Chip("1-0040", (Rail("VDD_GPU_SOC", 20032, 116), Rail("VDD_CPU_CV", 20032, 20), Rail("VIN_SYS_5V0", 4992, 504))),
    Chip("1-0041", (Rail("NC", 0, 0), Rail("VDDQ_VDD2_1V8AO", 20056, 40), Rail("NC", 0, 0))),
)
ORIN_NANO_CHIPS = (
    Chip("1-0040", (Rail("VDD_IN", 5080, 936), Rail("VDD_CPU_GPU_CV", 5072, 120), Rail("VDD_SOC", 5072, 280))),
)


def orin_jp5_gpu(hz: Tuple[int, ...]) -> Gpu:
    return Gpu("/sys/devices/17000000.ga10b", "17000000.ga10b", "ga10b", hz, "/sys/devices/gpu.0", load_permille=412)


def orin_jp6_gpu(hz: Tuple[int, ...]) -> Gpu:
    return Gpu(
        device="/sys/devices/platform/bus@0/17000000.gpu",
        device_name="17000000.gpu",
        node="gpu",
        hz=hz,
        alias="/sys/devices/platform/gpu.0",
        knext="/sys/devices/platform/17000000.gpu/devfreq_dev",
        load_permille=412,
    )


def agx_orin_stock(uncapped_emc: int) -> Tuple[Stock, ...]:
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
    clusters=clusters(12, 4, "CPU_A78", AGX_ORIN_KHZ),
    gpu=orin_jp5_gpu(AGX_ORIN_HZ),
    emc=Emc(ORIN_EMC_HZ, ISO_CAP),
    chips=AGX_ORIN_CHIPS,
    total="VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0 + VDDQ_VDD2_1V8AO",
    zones=JP5_ZONES,
    conf="nvpmodel_p3701_0005.conf",
    stock=agx_orin_stock(0),
    default=2,
    mem_total_kb=64349224,
)
AGX_ORIN_JP6 = AGX_ORIN_JP5._replace(
    name="agx-orin-jp6",
    release=JP6,
    l4t="36.4.3",
    gpu=orin_jp6_gpu(AGX_ORIN_JP6_HZ),
    emc=Emc(ORIN_EMC_HZ, CLOCK_CAP, ORIN_EMC_HZ[-1]),
    zones=JP6_ZONES,
    stock=agx_orin_stock(UNCAPPED),
)
ORIN_NANO_JP5 = Board(
    name="orin-nano-jp5",
    catalogue="orin-nano",
    model="NVIDIA Orin Nano Developer Kit",
    compatible=("nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234"),
    release=JP5,
    l4t="35.4.1",
    clusters=clusters(6, 4, "CPU_A78", ORIN_NANO_KHZ),
    gpu=orin_jp5_gpu(ORIN_NANO_HZ),
    emc=Emc(ORIN_NANO_EMC_HZ, ISO_CAP),
    chips=ORIN_NANO_CHIPS,
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
    clusters=clusters(6, 4, "CPU_A78", SUPER_KHZ),
    gpu=orin_jp6_gpu(SUPER_HZ),
    emc=Emc(ORIN_EMC_HZ, CLOCK_CAP, ORIN_EMC_HZ[-1]),
    zones=JP6_ZONES,
    conf="nvpmodel_p3767_0003_super.conf",
    stock=(
        Stock(0, "15W", tuple(range(6)), 1497600, 612000000, 2133000000, LOWEST_KHZ, 0, 240, 2),
        Stock(1, "25W", tuple(range(6)), 1344000, 918000000, 3199000000, LOWEST_KHZ, 0, 240, 2),
        Stock(2, "MAXN_SUPER", tuple(range(6)), UNCAPPED, UNCAPPED, UNCAPPED, LOWEST_KHZ, 0, 240, 2),
    ),
    default=2,
)
