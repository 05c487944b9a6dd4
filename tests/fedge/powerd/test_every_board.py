"""A board's knobs on the recorded boards: found as documented, set up and down, read back, put back to the byte."""

import contextlib
import random
import re

import pytest
from contracts import jetsons
from contracts.jetsons.kernel import CPUS, OFFLINE, OVERRIDE, POLICIES, KernelMachine
from contracts.jetsons.nvpmodel import REBOOTED

from fedge.powerd.board_control import BoardControl
from fedge.powerd.config import Config
from fedge.powerd.mode_records import Mode, PowerdRefusal

STEPS = 6
KNOBS = Mode._fields
TOUCHABLE = re.compile(
    r"/sys/devices/system/cpu/cpu[1-9]\d*/online|"
    r"/sys/devices/system/cpu/cpufreq/policy\d+/scaling_(min|max)_freq|"
    r"/sys/devices/(57000000\.gpu|17000000\.g\w+|platform/bus@0/17000000\.gpu)/devfreq/[\w.]+/(min|max)_freq|"
    r"/sys/kernel/nvpmodel_(emc_cap/emc_iso_cap|clk_cap/emc)|"
    r"/sys/kernel/debug/bpmp/debug/clk/emc/(rate|mrq_rate_locked)|"
    r"/sys/kernel/debug/clk/override\.emc/(clk_update_rate|clk_state)"
)


def numbers(machine, pattern):
    return [int(machine.read(path)) for path in machine.glob(pattern)]


def limit(machine, truth, which):
    return int(machine.read(f"/sys/class/devfreq/{truth.gpu.device_name}/{which}_freq"))


def held_rate(machine, truth):
    """The memory's rate if it is locked."""
    folder = "/sys/kernel/debug/bpmp/debug/clk/emc/" if truth.emc.bpmp else OVERRIDE + "/"
    rate, lock = ("rate", "mrq_rate_locked") if truth.emc.bpmp else ("clk_rate", "clk_state")
    return int(machine.read(folder + rate)) if machine.read(folder + lock) == "1" else None


def check_files(machine, truth, mode, lock_min=False):
    """The mode stands in the board's own files."""
    assert [cpu for cpu in truth.cpus if machine.online(cpu)] == list(truth.cpus[: mode.cores])
    assert set(numbers(machine, POLICIES + "/policy*/scaling_max_freq")) == {mode.cpu_khz}
    lowest = mode.cpu_khz if lock_min else truth.cpu_khz[0]
    assert set(numbers(machine, POLICIES + "/policy*/scaling_min_freq")) == {lowest}
    assert limit(machine, truth, "max") == mode.gpu_hz
    assert limit(machine, truth, "min") == (mode.gpu_hz if lock_min else truth.gpu_hz[0])
    assert held_rate(machine, truth) == mode.emc_hz


def end(board, which):
    """Every knob at its lowest (0) or highest (-1) allowed value."""
    return Mode(*(values[which] for values in board.allowed_tables()))


def test_a_board_says_what_it_is_and_the_tables_are_its_own(truth, board):
    assert board.identity() == {"model": truth.model, "compatible": list(truth.compatible), "l4t": truth.l4t}
    assert board.tables() == (truth.cores, truth.cpu_khz, truth.gpu_hz, truth.emc_hz)
    assert board.emc_control() == "lock"


def beside(table, cap):
    """The table's values next to a cap: rounding may take either."""
    below, above = [v for v in table if v <= cap], [v for v in table if v >= cap]
    return {(below or table)[-1], (above or table[-1:])[0]}


def test_the_presets_are_those_of_the_boards_nvpmodel_file(truth, board):
    found = board.presets()
    assert [(p.id, p.name, p.needs_reboot, p.default, p.mode.cores) for p in found] == [
        (p.id, p.name, p.needs_reboot, p.default, p.cores) for p in truth.presets
    ]
    for preset, stock, caps in zip(found, truth.stock, truth.presets):
        raw = (stock.cpu_max_khz, stock.gpu_max_hz, stock.emc_max_hz)
        for knob, cap, table in zip(KNOBS[1:], raw, (truth.cpu_khz, truth.gpu_hz, truth.emc_hz)):
            value = getattr(preset.mode, knob)
            if getattr(caps, knob) is None:
                assert value is None
            else:
                assert value in beside(table, cap)


def mode_of(caps, truth):
    """The mode that a preset's caps set."""
    clocks = ("cpu_khz", "gpu_hz", "emc_hz")
    return Mode(caps.cores, *(getattr(caps, clock) or getattr(truth, clock)[-1] for clock in clocks))


@pytest.mark.parametrize("knob", KNOBS)
def test_each_knob_goes_up_and_down_and_moves_no_other(knob, truth, machine, board):
    board.set_mode(end(board, -1))
    for value in (0, len(getattr(board.allowed_tables(), knob)) // 2, -1, 0, -1):
        wanted = getattr(board.allowed_tables(), knob)[value]
        expected = end(board, -1)._replace(**{knob: wanted})

        assert board.set_mode(Mode(**{knob: wanted})) == expected
        check_files(machine, truth, expected)
        assert board.mode() == expected


@pytest.mark.parametrize("lock_min", [False, True])
def test_all_knobs_go_to_their_ends_and_back(lock_min, truth, machine, board):
    before, found = jetsons.contents(machine.root), board.snapshot()
    for which in (0, -1, 0):
        mode = end(board, which)
        assert board.set_mode(mode, lock_min) == mode
        check_files(machine, truth, mode, lock_min)

    assert board.put_back(found) == []
    assert jetsons.contents(machine.root) == before
    assert machine.writes()
    assert [path for path, _ in machine.writes() if not TOUCHABLE.fullmatch(path)] == []


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_walk_is_read_back_at_every_step_and_put_back_to_the_byte(seed, truth, machine, board):
    draw = random.Random(seed)
    before, found = jetsons.contents(machine.root), board.snapshot()
    for _ in range(STEPS):
        mode = Mode(*(draw.choice(values) for values in board.allowed_tables()))
        lock_min = draw.random() < 0.3
        assert board.set_mode(mode, lock_min) == mode
        check_files(machine, truth, mode, lock_min)

    assert board.put_back(found) == []
    assert jetsons.contents(machine.root) == before
    assert board.snapshot() == found


def test_what_one_daemon_set_another_one_puts_back(truth, machine, board):
    board.set_mode(end(board, 0), lock_min=True)
    before, again = jetsons.contents(machine.root), BoardControl(machine, Config(emc_table_hz=truth.emc_hz))
    found = again.snapshot()
    again.set_mode(end(board, -1))
    assert again.put_back(found) == []
    assert jetsons.contents(machine.root) == before


def test_every_preset_is_set_or_refused_and_the_default_comes_back_to_the_byte(truth, machine, board, refused):
    before, found, preset = jetsons.contents(machine.root), board.snapshot(), board.preset()
    assert (preset.id, preset.default) == (truth.default, True)
    assert board.mode() == mode_of(truth.presets[truth.default], truth)
    for caps in truth.presets:
        if caps.needs_reboot:
            now = jetsons.contents(machine.root)
            assert refused(board.set_preset, caps.name).kind == "reboot-needed"
            assert jetsons.contents(machine.root) == now
            continue
        assert board.set_preset(caps.name) == mode_of(caps, truth)
        assert board.preset().id == caps.id

    assert board.put_back(found) == []
    assert jetsons.contents(machine.root) == before


def test_a_preset_after_a_mode_and_a_mode_after_a_preset_are_put_back(truth, machine, board):
    before, found = jetsons.contents(machine.root), board.snapshot()
    other = next(caps for caps in truth.presets if not caps.needs_reboot)
    board.set_mode(end(board, 0), lock_min=True)
    board.set_preset(other.id)
    assert board.preset().name == other.name
    board.set_mode(end(board, -1), lock_min=True)

    assert board.put_back(found) == []
    assert jetsons.contents(machine.root) == before


def test_power_gating_masks_are_never_written_and_nothing_reboots(truth, machine, board):
    masks = {p: c for p, c in jetsons.contents(machine.root).items() if p.endswith("_pg_mask")}
    for caps in truth.presets:
        with contextlib.suppress(PowerdRefusal):  # those that need a reboot
            board.set_preset(caps.id)
    board.set_mode(end(board, -1))

    assert not [path for path, _ in machine.writes() if path.endswith("_pg_mask")]
    assert {p: c for p, c in jetsons.contents(machine.root).items() if p.endswith("_pg_mask")} == masks
    assert not machine.exists(REBOOTED)


@pytest.mark.parametrize("knob", KNOBS)
def test_a_value_beside_the_table_is_refused_without_any_write(knob, machine, board, refused):
    for value in (getattr(board.tables(), knob)[-1] + 1, getattr(board.tables(), knob)[0] - 1, 0, -1):
        assert refused(board.set_mode, end(board, -1)._replace(**{knob: value})).kind == "off-table"
    assert machine.writes() == []


def test_neither_a_mode_nor_a_preset_goes_below_the_floor(truth, machine, board, refused):
    allowed = board.allowed_tables()
    assert allowed.cores[0] == 2
    assert allowed.cpu_khz[0] == min(khz for khz in truth.cpu_khz if khz >= 400000)
    for mode in (Mode(cores=1), Mode(cpu_khz=truth.cpu_khz[0]), end(board, -1)._replace(cores=1)):
        assert refused(board.set_mode, mode).kind == "below-floor"
    high = BoardControl(machine, Config(floor_cores=len(truth.cpus), emc_table_hz=truth.emc_hz))
    for caps in truth.presets:
        if caps.cores < len(truth.cpus) and not caps.needs_reboot:
            assert refused(high.set_preset, caps.name).kind == "below-floor"
    assert machine.writes() == []


def test_a_cap_on_the_memory_instead_of_a_lock(truth, machine):
    board = BoardControl(machine, Config(emc="cap", emc_table_hz=truth.emc_hz))
    before, found = jetsons.contents(machine.root), board.snapshot()
    assert board.emc_control() == "cap"
    for rate in (truth.emc_hz[0], truth.emc_hz[-1], truth.emc_hz[1]):
        assert board.set_mode(Mode(emc_hz=rate)).emc_hz == rate
        assert int(machine.read(truth.emc.cap)) == rate
        assert held_rate(machine, truth) is None

    assert board.put_back(found) == []
    assert jetsons.contents(machine.root) == before


def test_the_policies_of_clusters_that_are_off_come_back_with_their_cores(truth, machine, board):
    board.set_mode(end(board, -1))
    shown = {path.rsplit("/", 1)[1] for path in machine.glob(POLICIES + "/policy*")}
    assert shown == {f"policy{cluster.policy}" for cluster in truth.clusters}
    board.set_mode(Mode(cores=2))
    hidden = {path.rsplit("/", 1)[1] for path in machine.glob(OFFLINE + "/policy*")}
    assert hidden == {f"policy{c.policy}" for c in truth.clusters if not set(c.cpus) & {0, 1}}
    assert machine.read(CPUS + "/online") == "0-1"


def test_temperatures_leave_out_gated_zones_and_the_constant_of_the_power_chip(truth, board):
    expected = {z.name: z.milli_c / 1000 for z in truth.zones if not z.again and z.name != "PMIC-Die"}
    assert board.temperatures() == pytest.approx(expected)
    assert max(board.temperatures().values()) < 95


def test_the_fan_goes_to_full_speed(truth, machine, board):
    path = "/sys/devices/pwm-fan/target_pwm" if truth.jetpack4 else "/sys/devices/platform/pwm-fan/hwmon/hwmon2/pwm1"
    board.set_fan(100)
    assert machine.read(path) == "255"


def test_the_roots_own_nvpmodel_program_serves_the_board_too(roots, refused):
    """Once with the program itself instead of the quick form."""
    machine = KernelMachine(str(roots.root("agx-orin-jp5")))
    board = BoardControl(machine, Config())
    before, found = jetsons.contents(machine.root), board.snapshot()
    assert refused(board.set_preset, "MAXN").kind == "reboot-needed"
    board.set_mode(end(board, 0))
    assert board.set_preset("MODE_30W").cores == 8
    assert board.put_back(found) == []
    assert jetsons.contents(machine.root) == before
