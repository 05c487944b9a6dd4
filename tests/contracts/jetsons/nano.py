"""Jetson Nano 4GB under JetPack 4.6: one Cortex-A57 cluster, gm20b, iio power sensors, the memory clock by bwmgr."""

from .records import UNCAPPED, Board, Chip, Cluster, Emc, Gpu, Rail, Stock, Zone, release, steps

CPU_KHZ = (
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
    clusters=(Cluster(0, (0, 1, 2, 3), CPU_KHZ, "CPU_A57"),),
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
        cap="/sys/kernel/nvpmodel_emc_cap/emc_iso_cap",
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
