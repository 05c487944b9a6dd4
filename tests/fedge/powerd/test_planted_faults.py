"""What goes wrong while a mode is set is reported with what was read back, and the board is left as it was found."""

import pytest
from contracts import jetsons
from contracts.jetsons.kernel import CPUS, OVERRIDE, POLICIES, Fault, KernelMachine, half, hot, lost_sensor, stuck_core
from contracts.jetsons.nvpmodel import SWITCH

from fedge.powerd.board import Board
from fedge.powerd.mode import Mode, Options, Refused

TEMP = "/sys/class/thermal/thermal_zone{}/temp"
REFUSALS = ("EINVAL", "EBUSY", "EPERM")


@pytest.fixture(params=jetsons.BOARDS)
def truth(request):
    return jetsons.board(request.param)


@pytest.fixture
def machine(truth, tmp_path):
    return KernelMachine(str(jetsons.build(truth.name, tmp_path)), quick=True)


@pytest.fixture
def board(truth, machine):
    return opened(truth, machine)


def opened(truth, machine, **more):
    return Board(machine, Options(emc_table_hz=() if truth.emc.bpmp else truth.emc_hz, **more))


def middle(board):
    """A mode that differs from the found one in every clock, on as many cores as are on."""
    allowed = board.allowed()
    values = [table[len(table) // 2 + 1] for table in allowed[1:3]] + [allowed.emc_hz[0]]
    return Mode(board.mode().cores, *values)


def opposite(board):
    """A mode that switches cores and moves every clock: down from all cores, else up to all of them."""
    allowed, cores = board.allowed(), board.mode().cores
    return middle(board)._replace(cores=allowed.cores[-1] if cores < allowed.cores[-1] else 2)


def refused(board, act):
    """What a change was refused with."""
    with pytest.raises(Refused) as caught:
        act(board)
    return caught.value


def files(truth, knob):
    """The files that a knob's limits are in."""
    gpu = f"/sys/class/devfreq/{truth.gpu.device_name}/"
    emc = "/sys/kernel/debug/bpmp/debug/clk/emc/rate" if truth.emc.bpmp else OVERRIDE + "/clk_update_rate"
    return {
        "cpu": POLICIES + "/policy0/scaling_max_freq",
        "last-cpu": f"{POLICIES}/policy{last_policy(truth)}/scaling_max_freq",
        "gpu": gpu + "max_freq",
        "emc": emc,
        "lock": emc.replace("rate", "mrq_rate_locked") if truth.emc.bpmp else OVERRIDE + "/clk_state",
        "cpu-min": POLICIES + "/policy0/scaling_min_freq",
        "gpu-min": gpu + "min_freq",
    }[knob]


def last_policy(truth):
    """Of the clusters that are on at the start."""
    return [c.policy for c in truth.clusters if set(c.cpus) & set(truth.found.cpus)][-1]


CLOCKS = ("cpu", "last-cpu", "gpu", "emc")


def assert_caught(truth, machine, fault, knob):
    """The fault is reported as such with what stands in the file, and every byte is as before."""
    board, before = opened(truth, machine), jetsons.contents(machine.root)
    found = int(machine.read(files(truth, knob)))
    machine.plant(fault)
    refusal = refused(board, lambda board: board.set_mode(middle(board), lock_min=True))

    assert refusal.kind == "did-not-stick"
    assert "the state before is set again" in refusal.text
    assert jetsons.contents(machine.root) == before
    return refusal, found


@pytest.mark.parametrize("knob", [*CLOCKS, "lock"])
def test_a_write_without_effect_is_caught_and_undone(knob, truth, machine):
    refusal, found = assert_caught(truth, machine, Fault("ignore", files(truth, knob)), knob)
    assert refusal.got == found


@pytest.mark.parametrize("knob", CLOCKS)
def test_a_rounded_value_is_caught_and_undone(knob, truth, machine):
    wanted = getattr(middle(opened(truth, machine)), {"gpu": "gpu_hz", "emc": "emc_hz"}.get(knob, "cpu_khz"))
    refusal, _ = assert_caught(truth, machine, Fault("round", files(truth, knob), times=1), knob)
    assert refusal.got != wanted
    assert str(refusal.got) in refusal.text


@pytest.mark.parametrize("knob", [*CLOCKS, "lock"])
def test_a_refused_write_is_told_and_undone(knob, truth, machine):
    for error in REFUSALS:
        refusal, found = assert_caught(truth, machine, Fault("refuse", files(truth, knob), error), knob)
        assert refusal.got == found
        assert files(truth, knob).rsplit("/", 1)[1] in refusal.text
        machine.plant()


@pytest.mark.parametrize("knob", ["cpu-min", "gpu-min"])
def test_a_mode_that_sticks_by_half_is_caught_and_undone(knob, truth, machine):
    refusal, found = assert_caught(truth, machine, half(files(truth, knob)), knob)
    assert refusal.got == found


@pytest.mark.parametrize("knob", CLOCKS)
def test_a_file_that_vanishes_is_told_and_all_else_is_put_back(knob, truth, machine, board):
    path = machine.resolve(files(truth, knob))
    before = jetsons.contents(machine.root)
    machine.plant(Fault("vanish", path))
    refusal = refused(board, lambda board: board.set_mode(middle(board), lock_min=True))

    assert refusal.kind == "did-not-stick"
    # A memory rate without its file is whatever the kernel makes of it once the lock is off, as it was before.
    assert "NOT put back" in refusal.text or knob == "emc"
    now = jetsons.contents(machine.root)
    folder = path.rsplit("/", 1)[0]  # what hangs on the lost limit may be left over
    assert path not in now
    assert {p: c for p, c in now.items() if not p.startswith(folder)} == {
        p: c for p, c in before.items() if not p.startswith(folder)
    }


def a_core_to_switch(truth):
    """The last core that ``opposite`` switches: a core that fails late."""
    off = [cpu for cpu in truth.cpus if cpu not in truth.found.cpus]
    return off[-1] if off else 2


@pytest.mark.parametrize("kind", ["stuck", "ignored"])
def test_a_core_that_does_not_switch_is_told_and_all_is_undone(kind, truth, machine, board):
    core, before = a_core_to_switch(truth), jetsons.contents(machine.root)
    switch = f"{CPUS}/cpu{core}/online"
    machine.plant(stuck_core(core) if kind == "stuck" else Fault("ignore", switch))
    refusal = refused(board, lambda board: board.set_mode(opposite(board)))

    assert (refusal.kind, refusal.got) == ("did-not-stick", int(core in truth.found.cpus))
    assert switch in refusal.text
    assert jetsons.contents(machine.root) == before


def writes_of(machine, board, act):
    """How many single writes a change takes."""
    before, found = len(machine.writes()), board.snapshot()
    act(board)
    count = len(machine.writes()) - before
    assert board.put_back(found) == []
    return count


@pytest.mark.parametrize("name", jetsons.BOARDS)
@pytest.mark.parametrize("kind", ["ignore", "refuse"])
def test_whichever_write_of_a_change_fails_everything_is_put_back(kind, name, tmp_path):
    truth = jetsons.board(name)
    machine = KernelMachine(str(jetsons.build(name, tmp_path)), quick=True)
    board = opened(truth, machine)
    before = jetsons.contents(machine.root)
    count = writes_of(machine, board, lambda board: board.set_mode(opposite(board), lock_min=True))
    assert jetsons.contents(machine.root) == before
    assert count > 6
    for failing in range(count):
        machine.plant(Fault(kind, "*", "EBUSY", after=failing, times=1))
        refusal = refused(board, lambda board: board.set_mode(opposite(board), lock_min=True))
        assert refusal.kind == "did-not-stick"
        machine.plant()
        assert jetsons.contents(machine.root) == before, failing


def another_preset(truth):
    """One that can be set, with other limits on the CPU where there is one; None where the board has none."""
    others = [caps for caps in truth.presets if not caps.needs_reboot and not caps.default]
    now, top = truth.presets[truth.default].cpu_khz, truth.cpu_khz[-1]
    return next((caps for caps in others if (caps.cpu_khz or top) != (now or top)), None)


with_presets = pytest.mark.parametrize("name", [name for name in jetsons.BOARDS if another_preset(jetsons.board(name))])


def known(machine):
    """All files but the GPU's runtime power control, which nvpmodel alone writes and leaves "on" if it dies midway."""
    return {p: c for p, c in jetsons.contents(machine.root).items() if not p.endswith("/power/control")}


def assert_preset_caught(name, folder, spoil):
    """Setting another preset is refused and leaves no trace; ``spoil`` makes it go wrong."""
    truth = jetsons.board(name)
    machine = KernelMachine(str(jetsons.build(name, folder)), quick=True)
    board = opened(truth, machine)
    machine.path(SWITCH).write_text("")
    before = known(machine)
    spoil(machine)
    refusal = refused(board, lambda board: board.set_preset(another_preset(truth).name))
    machine.path(SWITCH).write_text("")

    assert known(machine) == before
    return refusal, machine


@with_presets
def test_a_container_is_told_apart(name, tmp_path):
    refusal, _ = assert_preset_caught(name, tmp_path, lambda machine: machine.path(SWITCH).write_text("container"))
    assert refusal.kind == "container"


@with_presets
@pytest.mark.parametrize("how", ["fails", "half"])
def test_an_nvpmodel_that_fails_is_told_and_undone(how, name, tmp_path):
    refusal, _ = assert_preset_caught(name, tmp_path, lambda machine: machine.path(SWITCH).write_text(how))
    assert refusal.kind == "did-not-stick"
    assert "255" in refusal.text


@with_presets
def test_a_preset_that_does_not_reach_the_kernel_is_caught_and_undone(name, tmp_path):
    """nvpmodel ends well and says that the mode is set, but the CPU's limit is what it was."""
    path = POLICIES + "/policy0/scaling_max_freq"
    refusal, machine = assert_preset_caught(name, tmp_path, lambda machine: machine.plant(Fault("ignore", path)))
    assert refusal.kind == "did-not-stick"
    assert refusal.got == int(machine.read(path))


def test_a_lost_sensor_that_is_not_needed_is_passed_over(truth, machine, board):
    machine.plant(lost_sensor(TEMP.format(0)))
    assert truth.zones[0].name not in board.temperatures()


@pytest.mark.parametrize("error", ["ENODEV", "EAGAIN", "EIO"])
def test_a_lost_sensor_that_is_needed_is_told_by_name(error, truth, machine):
    zone = truth.zones[1].name
    board = opened(truth, machine, needed_zones=(zone,))
    assert zone in board.temperatures()
    machine.plant(Fault("unreadable", TEMP.format(1), error))
    refusal = refused(board, lambda board: board.temperatures())
    assert refusal.kind == "sensor-lost"
    assert zone in refusal.text


def test_a_board_without_any_readable_sensor_is_told(machine, board):
    machine.plant(lost_sensor(TEMP.format("*")))
    assert refused(board, lambda board: board.temperatures()).kind == "sensor-lost"


def test_heat_is_seen(truth, machine, board):
    machine.plant(hot(TEMP.format(0), 101.5))
    assert board.temperatures()[truth.zones[0].name] == 101.5


def test_what_cannot_be_put_back_is_named_and_the_rest_is(truth, machine, board):
    before, found = jetsons.contents(machine.root), board.snapshot()
    board.set_mode(middle(board), lock_min=True)
    path = machine.resolve(files(truth, "gpu"))
    machine.plant(Fault("refuse", path, "EIO"))
    left = board.put_back(found)

    assert left
    assert any(truth.gpu.device_name in text for text in left)
    folder = path.rsplit("/", 1)[0]
    now = jetsons.contents(machine.root)
    assert {p for p in now if now[p] != before[p]} <= {p for p in now if p.startswith(folder)}
    machine.plant()
    assert board.put_back(found) == []
    assert jetsons.contents(machine.root) == before


def test_a_state_that_cannot_be_read_is_refused_before_any_write(truth, machine, board):
    machine.plant(Fault("unreadable", files(truth, "cpu"), "EIO"))
    with pytest.raises(Refused):
        board.set_mode(middle(board))
    assert machine.writes() == []
