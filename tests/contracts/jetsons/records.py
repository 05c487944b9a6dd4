"""What a recorded board is: one record per board with its tables, paths, rails, presets, and the truth for tests."""

from typing import List, NamedTuple, Optional, Tuple

UNCAPPED = -1
"""nvpmodel's word for no limit."""


class Cluster(NamedTuple):
    """Cores that share a cpufreq policy, the policy's number, and the cluster's name in nvpmodel's file."""

    policy: int
    cpus: Tuple[int, ...]
    khz: Tuple[int, ...]
    name: str


class Gpu(NamedTuple):
    """The GPU's devfreq: its device's folder, the device's name, its device-tree name, its clocks, where masks lie."""

    device: str
    device_name: str
    node: str
    hz: Tuple[int, ...]
    alias: str
    """The link that nvpmodel's masks are reached through."""
    knext: str = ""
    """A second folder of the devfreq's, a link; empty when there is none."""
    load_permille: int = 0


class Emc(NamedTuple):
    """The memory clock: its table, the cap's file, what the cap reads without a limit, and whether bpmp has it."""

    hz: Tuple[int, ...]
    cap: str
    free: int = 0
    bpmp: bool = True


class Rail(NamedTuple):
    """One input of a power sensor: its label, millivolts, milliamperes."""

    label: str
    mv: int
    ma: int


class Chip(NamedTuple):
    """One INA3221: bus and address (``1-0040``), and its three inputs."""

    address: str
    rails: Tuple[Rail, ...]


class Zone(NamedTuple):
    """A thermal zone; ``again`` marks one that answers EAGAIN while its block is gated."""

    name: str
    milli_c: int
    again: bool = False


class Stock(NamedTuple):
    """A stock preset as nvpmodel's file has it: caps in the file's own values, -1 (clocks) or 0 (EMC) for none."""

    id: int
    name: str
    cpus: Tuple[int, ...]
    """The cores it leaves on."""
    cpu_max_khz: int
    gpu_max_hz: int
    emc_max_hz: int
    cpu_min_khz: int = 0
    gpu_min_hz: int = 0
    tpc_mask: Optional[int] = None
    fbp_mask: Optional[int] = None


class Caps(NamedTuple):
    """A preset's limits as values of the board's tables; None for a knob that the preset leaves uncapped."""

    id: int
    name: str
    cores: int
    cpu_khz: Optional[int]
    gpu_hz: Optional[int]
    emc_hz: Optional[int]
    needs_reboot: bool
    default: bool


class Board(NamedTuple):
    """A complete board."""

    name: str
    catalogue: str
    """The board's name in fedge's catalogue."""
    model: str
    compatible: Tuple[str, ...]
    release: str
    """The text of /etc/nv_tegra_release."""
    l4t: str
    clusters: Tuple[Cluster, ...]
    gpu: Gpu
    emc: Emc
    chips: Tuple[Chip, ...]
    total: str
    zones: Tuple[Zone, ...]
    conf: str
    """The file that /etc/nvpmodel.conf points to."""
    stock: Tuple[Stock, ...]
    default: int
    mem_total_kb: int
    cores_in_conf: str = "cluster"
    """"cluster" or "core": what nvpmodel's CPU parameters stand for."""
    cpu0_switch: bool = True
    """Whether there is a file cpu0/online."""

    @property
    def jetpack4(self) -> bool:
        """Power is read through iio, the fan is /sys/devices/pwm-fan, and over-current is not counted."""
        return self.l4t.startswith("32.")

    @property
    def cpus(self) -> Tuple[int, ...]:
        return tuple(sorted(cpu for cluster in self.clusters for cpu in cluster.cpus))

    @property
    def cores(self) -> Tuple[int, ...]:
        """The counts that the board can run with."""
        return tuple(range(1, len(self.cpus) + 1))

    @property
    def cpu_khz(self) -> Tuple[int, ...]:
        return self.clusters[0].khz

    @property
    def gpu_hz(self) -> Tuple[int, ...]:
        return self.gpu.hz

    @property
    def emc_hz(self) -> Tuple[int, ...]:
        return self.emc.hz

    @property
    def labels(self) -> Tuple[str, ...]:
        """The rails that measure something."""
        return tuple(rail.label for chip in self.chips for rail in chip.rails if rail.label != "NC")

    @property
    def total_w(self) -> float:
        """What the total formula gives at the voltages and currents of the record."""
        wanted = [name.strip() for name in self.total.split("+")]
        rails = [rail for chip in self.chips for rail in chip.rails if rail.label in wanted]
        return sum(rail.mv * rail.ma for rail in rails) / 1e6

    @property
    def found(self) -> Stock:
        """The stock preset that is set when the board has started."""
        return next(stock for stock in self.stock if stock.id == self.default)

    @property
    def presets(self) -> List[Caps]:
        return [caps(self, stock) for stock in self.stock]


def nearest(table: Tuple[int, ...], value: int) -> int:
    """The table's value that lies nearest; the lower one of two."""
    return min(table, key=lambda entry: (abs(entry - value), entry))


def caps(board: Board, stock: Stock) -> Caps:
    """What a stock preset means in the board's own clocks."""
    return Caps(
        stock.id,
        stock.name,
        len(stock.cpus),
        _capped(board.cpu_khz, stock.cpu_max_khz),
        _capped(board.gpu.hz, stock.gpu_max_hz),
        _capped(board.emc.hz, stock.emc_max_hz),
        (stock.tpc_mask, stock.fbp_mask) != (board.found.tpc_mask, board.found.fbp_mask),
        stock.id == board.default,
    )


def _capped(table: Tuple[int, ...], value: int) -> Optional[int]:
    return None if value in (UNCAPPED, 0) else nearest(table, value)


def steps(first: int, last: int, step: int, *more: int) -> Tuple[int, ...]:
    """An even table, and what follows it."""
    return (*range(first, last + 1, step), *more)


def release(major: int, revision: str, board: str, date: str, *more: str) -> str:
    """The text of /etc/nv_tegra_release."""
    first = "# R{} (release), REVISION: {}, GCID: 12345678, BOARD: {}, EABI: aarch64, DATE: {}"
    return "\n".join((first.format(major, revision, board, date), *more)) + "\n"
