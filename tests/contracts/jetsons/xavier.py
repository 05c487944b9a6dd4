"""Jetson Xavier NX 8GB and AGX Xavier 32GB under JetPack 5: clusters of two Carmel cores, gv11b, hwmon sensors."""

from typing import Tuple

from .records import UNCAPPED, Board, Chip, Cluster, Emc, Gpu, Rail, Stock, Zone, release, steps

RELEASE = release(35, "4.1", "t186ref", "Tue Aug  1 19:57:35 UTC 2023")
CAP = "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap"
ZONES = (
    Zone("CPU-therm", 41500),
    Zone("GPU-therm", 40500),
    Zone("AUX-therm", 40000),
    Zone("AO-therm", 41000),
    Zone("thermal-fan-est", 40800),
)
NX_KHZ = steps(115200, 1881600, 76800, 1907200)
AGX_KHZ = steps(115200, 2188800, 76800, 2265600)


def clusters(cores: int, khz: Tuple[int, ...]) -> Tuple[Cluster, ...]:
    return tuple(Cluster(cpu, (cpu, cpu + 1), khz, f"CPU_DENVER_{cpu // 2}") for cpu in range(0, cores, 2))


def gpu(hz: Tuple[int, ...]) -> Gpu:
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


def agx_stock(id_: int, name: str, cores: int, cpu_khz: int, gpu_hz: int, emc_hz: int, tpc: int = 0) -> Stock:
    lowest_gpu_hz = 318750000 if name == "MODE_15W_DESKTOP" else 0
    return Stock(id_, name, tuple(range(cores)), cpu_khz, gpu_hz, emc_hz, 1200000, lowest_gpu_hz, tpc)


XAVIER_NX = Board(
    name="xavier-nx",
    catalogue="xavier-nx",
    model="NVIDIA Jetson Xavier NX Developer Kit",
    compatible=("nvidia,p3509-0000+p3668-0000", "nvidia,p3668-0000", "nvidia,tegra194"),
    release=RELEASE,
    l4t="35.4.1",
    clusters=clusters(6, NX_KHZ),
    gpu=gpu(
        (
            *(114750000, 204000000, 306000000, 408000000, 510000000, 599250000, 701250000, 752250000),
            *(803250000, 854250000, 905250000, 956250000, 1007250000, 1058250000, 1109250000),
        )
    ),
    emc=Emc(hz=(204000000, 1600000000, 1866000000), cap=CAP),
    chips=(Chip("7-0040", (Rail("VDD_IN", 5032, 876), Rail("VDD_CPU_GPU_CV", 5032, 152), Rail("VDD_SOC", 5032, 240))),),
    total="VDD_IN",
    zones=ZONES,
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
    release=RELEASE,
    l4t="35.4.1",
    clusters=clusters(8, AGX_KHZ),
    gpu=gpu(
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
        cap=CAP,
    ),
    chips=(
        Chip("1-0040", (Rail("GPU", 19112, 16), Rail("CPU", 19112, 40), Rail("SOC", 19112, 72))),
        Chip("1-0041", (Rail("CV", 19120, 8), Rail("VDDRQ", 19120, 24), Rail("SYS5V", 19088, 88))),
    ),
    total="GPU + CPU + SOC + CV + VDDRQ + SYS5V",
    zones=(*ZONES, Zone("Tboard_tegra", 38000), Zone("Tdiode_tegra", 40250)),
    conf="nvpmodel_t194.conf",
    stock=(
        agx_stock(0, "MAXN", 8, UNCAPPED, UNCAPPED, 0),
        agx_stock(1, "MODE_10W", 2, 1200000, 520000000, 1065600000, tpc=5),
        agx_stock(2, "MODE_15W", 4, 1200000, 670000000, 1331200000),
        agx_stock(3, "MODE_30W_ALL", 8, 1200000, 900000000, 1600000000),
        agx_stock(4, "MODE_30W_6CORE", 6, 1450000, 900000000, 1600000000),
        agx_stock(5, "MODE_30W_4CORE", 4, 1780000, 900000000, 1600000000),
        agx_stock(6, "MODE_30W_2CORE", 2, 2100000, 900000000, 1600000000),
        agx_stock(7, "MODE_15W_DESKTOP", 4, 2188800, 670000000, 1331200000),
    ),
    default=7,
    mem_total_kb=32689056,
)
