"""Jetson TX2 8GB under JetPack 4.6: a Cortex-A57 and a Denver 2 cluster, gp10b, two iio power sensors."""

from .records import UNCAPPED, Board, Chip, Cluster, Emc, Gpu, Rail, Stock, Zone, release, steps

CPU_KHZ = steps(345600, 2035200, 153600)

TX2 = Board(
    name="tx2",
    catalogue="tx2",
    model="quill",
    compatible=("nvidia,p2597-0000+p3310-1000", "nvidia,quill", "nvidia,tegra186"),
    release=release(32, "7.1", "t186ref", "Sat Feb 19 17:07:00 UTC 2022"),
    l4t="32.7.1",
    clusters=(Cluster(0, (0, 3, 4, 5), CPU_KHZ, "CPU_A57"), Cluster(1, (1, 2), CPU_KHZ, "CPU_DENVER")),
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
        cap="/sys/kernel/nvpmodel_emc_cap/emc_iso_cap",
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
