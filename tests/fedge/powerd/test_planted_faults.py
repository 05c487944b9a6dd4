"""What goes wrong while a mode is set is reported with what was read back, and the board is left as it was found."""

import json

import pytest
from contracts import jetsons
from contracts.jetsons.kernel import (
    CPUS,
    OFFLINE,
    OVERRIDE,
    POLICIES,
    Fault,
    KernelMachine,
    half,
    hot,
    lost_sensor,
    stuck_core,
)
from contracts.jetsons.nvpmodel import SWITCH

from fedge.powerd import state_keeper
from fedge.powerd.board_control import BoardControl
from fedge.powerd.config import Config
from fedge.powerd.mode_records import Mode, PowerdRefusal
from fedge.powerd.state_keeper import StateKeeper
from fedge.powerd.verb_handlers import Daemon

TEMP = "/sys/class/thermal/thermal_zone{}/temp"
REFUSALS = ("EINVAL", "EBUSY", "EPERM")


def opened(truth, machine, **more):
    return BoardControl(machine, Config(emc_table_hz=() if truth.emc.bpmp else truth.emc_hz, **more))


def middle(board):
    """A mode that differs from the found one in every clock, on as many cores as are on."""
    allowed = board.allowed_tables()
    values = [table[len(table) // 2 + 1] for table in allowed[1:3]] + [allowed.emc_hz[0]]
    return Mode(board.mode().cores, *values)


def opposite(board):
    """A mode that switches cores and moves every clock: down from all cores, else up to all of them."""
    allowed, cores = board.allowed_tables(), board.mode().cores
    return middle(board)._replace(cores=allowed.cores[-1] if cores < allowed.cores[-1] else 2)


def refused(board, act):
    """What a change was refused with."""
    with pytest.raises(PowerdRefusal) as caught:
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


@pytest.mark.parametrize("name", jetsons.PLAYED)
@pytest.mark.parametrize("kind", ["ignore", "refuse"])
def test_whichever_write_of_a_change_fails_everything_is_put_back(kind, name, roots):
    truth = jetsons.board(name)
    machine = KernelMachine(str(roots.root(name)), quick=True)
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


with_presets = pytest.mark.parametrize("name", [name for name in jetsons.PLAYED if another_preset(jetsons.board(name))])


def known(machine):
    """All files but the GPU's runtime power control, which nvpmodel alone writes and leaves "on" if it dies midway."""
    return {p: c for p, c in jetsons.contents(machine.root).items() if not p.endswith("/power/control")}


def assert_preset_caught(name, roots, spoil):
    """Setting another preset is refused and leaves no trace; ``spoil`` makes it go wrong."""
    truth = jetsons.board(name)
    machine = KernelMachine(str(roots.root(name)), quick=True)
    board = opened(truth, machine)
    machine.path(SWITCH).write_text("")
    before = known(machine)
    spoil(machine)
    refusal = refused(board, lambda board: board.set_preset(another_preset(truth).name))
    machine.path(SWITCH).write_text("")

    assert known(machine) == before
    return refusal, machine


@with_presets
@pytest.mark.parametrize(
    ("how", "kind", "word"), [("fails", "did-not-stick", "255"), ("half", "did-not-stick", "255"), ("container",) * 3]
)
def test_an_nvpmodel_that_fails_or_is_in_a_container_is_told_and_undone(how, kind, word, name, roots):
    refusal, _ = assert_preset_caught(name, roots, lambda machine: machine.path(SWITCH).write_text(how))
    assert refusal.kind == kind
    assert word in refusal.text


@with_presets
def test_a_preset_that_does_not_reach_the_kernel_is_caught_and_undone(name, roots):
    """nvpmodel ends well and says that the mode is set, but the CPU's limit is what it was."""
    path = POLICIES + "/policy0/scaling_max_freq"
    refusal, machine = assert_preset_caught(name, roots, lambda machine: machine.plant(Fault("ignore", path)))
    assert refusal.kind == "did-not-stick"
    assert refusal.got == int(machine.read(path))


def test_heat_is_seen_a_lost_sensor_is_passed_over_unless_all_are_lost(truth, machine, board):
    first = truth.zones[0].name
    machine.plant(hot(TEMP.format(0), 101.5))
    assert board.temperatures()[first] == 101.5
    machine.plant(lost_sensor(TEMP.format(0)))
    assert first not in board.temperatures()
    machine.plant(lost_sensor(TEMP.format("*")))
    assert refused(board, lambda board: board.temperatures()).kind == "sensor-lost"


@pytest.mark.parametrize("error", ["ENODEV", "EAGAIN", "EIO"])
def test_a_lost_sensor_that_is_needed_is_told_by_name(error, truth, machine):
    zone = truth.zones[1].name
    board = opened(truth, machine, needed_zones=(zone,))
    assert zone in board.temperatures()
    machine.plant(Fault("unreadable", TEMP.format(1), error))
    refusal = refused(board, lambda board: board.temperatures())
    assert refusal.kind == "sensor-lost"
    assert zone in refusal.text


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


def test_the_daemon_tells_what_became_of_a_set_whose_file_is_gone_and_goes_on_telling(truth, machine, board, scratch):
    daemon = Daemon(board, StateKeeper(board, scratch, "this boot"), Config())
    daemon.start()
    machine.plant(Fault("vanish", machine.resolve(files(truth, "gpu"))))

    error = asked(daemon, verb="set", mode=middle(board).to_wire())["error"]
    assert error["kind"] == "did-not-stick"
    assert "NOT put back" in error["text"]
    told = asked(daemon, verb="get")
    assert (told["ok"], told["changed"], told["mode"]) == (True, True, {})
    assert "max_freq" in told["stopped"]
    assert state_keeper.load_state(scratch) is not None
    assert asked(daemon, verb="set", mode={"cores": 2})["error"]["kind"] == "failed"


def asked(daemon, **request):
    """The daemon's reply."""
    return json.loads(daemon.answer(json.dumps(dict(request, v=1)).encode(), 0).decode())


def test_a_drifting_memory_clock_is_no_change_of_ours(machine, board, scratch):
    machine.drift()
    found = board.mode()
    clocks = {"cpu_khz": found.cpu_khz, "gpu_hz": found.gpu_hz}
    board.set_mode(Mode(**clocks))  # some presets have lower limits too, which a mode lets go
    daemon = Daemon(board, StateKeeper(board, scratch, "this boot"), Config(floor_cores=1))
    daemon.start()
    before = jetsons.contents(machine.root)
    for mode in (middle(board)._replace(cores=None, emc_hz=None).to_wire(), clocks):
        assert asked(daemon, verb="set", mode=mode)["ok"]
    assert asked(daemon, verb="get")["changed"] is False
    assert asked(daemon, verb="set", mode=middle(board).to_wire())["ok"]
    assert asked(daemon, verb="restore")["ok"]
    assert asked(daemon, verb="get")["changed"] is False
    after = jetsons.contents(machine.root)
    assert {path for path in before if after[path] != before[path] and "emc" not in path} == set()


def test_a_state_that_cannot_be_read_is_refused_before_any_write(truth, machine, board):
    machine.plant(Fault("unreadable", files(truth, "cpu"), "EIO"))
    with pytest.raises(PowerdRefusal):
        board.set_mode(middle(board))
    assert machine.writes() == []


CAPPED = pytest.mark.parametrize("name", ["nano", "agx-orin-jp6"])
"""One board of each place that the cap has had, both with a lock that the cap control must leave alone."""


class Capped:
    """A board whose memory is capped, not locked, and a change that moves its cap last, after all other knobs."""

    def __init__(self, name, roots, emc="cap") -> None:
        self.truth = jetsons.board(name)
        self.machine = KernelMachine(str(roots.root(name)), quick=True)
        self.board = opened(self.truth, self.machine, emc=emc)
        self.cap = self.truth.emc.cap
        self.before = jetsons.contents(self.machine.root)
        self.found = int(self.machine.read(self.cap))

    def refused(self, *faults):
        """What the change is refused with while these faults are planted."""
        self.machine.plant(*faults)
        refusal = refused(self.board, lambda board: board.set_mode(middle(board), lock_min=True))
        self.machine.plant()
        assert refusal.kind == "did-not-stick"
        return refusal


@CAPPED
@pytest.mark.parametrize("kind", ["ignore", "round", *REFUSALS])
def test_a_cap_that_does_not_stick_is_caught_and_undone(kind, name, roots):
    one = Capped(name, roots)
    fault = Fault("refuse", one.cap, kind, times=1) if kind in REFUSALS else Fault(kind, one.cap, times=1)
    refusal = one.refused(fault)

    assert one.cap in refusal.text
    assert "the state before is set again" in refusal.text
    assert refusal.got == one.found or (kind == "round" and str(refusal.got) in refusal.text)
    assert jetsons.contents(one.machine.root) == one.before


@CAPPED
def test_a_lock_that_cannot_be_released_for_the_cap_is_told_and_undone(name, roots):
    one = Capped(name, roots)
    opened(one.truth, one.machine).set_mode(Mode(emc_hz=one.truth.emc_hz[0]))  # by a daemon that locks
    one.before = jetsons.contents(one.machine.root)
    lock = files(one.truth, "lock")
    refusal = one.refused(Fault("refuse", lock, "EBUSY", times=1))

    assert lock in refusal.text
    assert refusal.got == 1
    assert jetsons.contents(one.machine.root) == one.before


@CAPPED
def test_whichever_write_under_a_cap_fails_everything_is_put_back(name, roots):
    one = Capped(name, roots)
    count = writes_of(one.machine, one.board, lambda board: board.set_mode(opposite(board), lock_min=True))
    assert count > 6
    for failing in range(count):
        one.machine.plant(Fault("ignore", "*", after=failing, times=1))
        refusal = refused(one.board, lambda board: board.set_mode(opposite(board), lock_min=True))
        assert refusal.kind == "did-not-stick"
        one.machine.plant()
        assert jetsons.contents(one.machine.root) == one.before, failing


def others(contents, path, truth):
    """All files but those that hang on a lost one: beside it, the memory's clock, a core's cluster and the lists."""
    hang = [path.rsplit("/", 1)[0], "/sys/kernel/debug/bpmp", "/sys/kernel/debug/clk"]
    if path.endswith("/online"):
        core = int(path.split("/")[-2][3:])
        policy = next(cluster.policy for cluster in truth.clusters if core in cluster.cpus)
        hang += [f"{POLICIES}/policy{policy}/", f"{OFFLINE}/policy{policy}/", CPUS + "/online", CPUS + "/offline"]
    return {p: c for p, c in contents.items() if not p.startswith(tuple(hang))}


@CAPPED
@pytest.mark.parametrize(
    ("emc", "what"),
    [("cap", what) for what in ("cap", "gpu", "last-cpu", "cpu-min", "gpu-min", "core")]
    + [("lock", what) for what in ("lock", "cpu", "last-cpu", "gpu", "cpu-min", "gpu-min", "core")],
)
def test_a_file_that_vanishes_is_told_by_name_and_all_else_is_put_back(emc, what, name, roots):
    one = Capped(name, roots, emc)
    core = f"{CPUS}/cpu{a_core_to_switch(one.truth)}/online"
    path = one.machine.resolve({"cap": one.cap, "core": core}.get(what) or files(one.truth, what))
    one.machine.plant(Fault("vanish", path))
    refusal = refused(one.board, lambda board: board.set_mode(opposite(board), lock_min=True))
    one.machine.plant()

    assert refusal.kind == "did-not-stick"
    now = jetsons.contents(one.machine.root)
    assert path not in now
    assert "NOT put back" in refusal.text
    assert "/".join(path.split("/")[-2:]) in refusal.text.split("NOT put back")[1]
    assert others(now, path, one.truth) == others(one.before, path, one.truth)


def test_a_rate_that_the_kernel_chose_itself_is_left_to_it_where_releasing_its_lock_failed_once(roots):
    one = Capped("agx-orin-jp6", roots, emc="lock")
    one.machine.drift()
    found, lock = one.board.snapshot(), files(one.truth, "lock")
    one.board.set_mode(Mode(emc_hz=one.truth.emc_hz[0]))
    one.machine.plant(Fault("refuse", lock, "EBUSY", times=1))
    written = len(one.machine.writes())

    assert one.board.put_back(found) == []
    assert one.machine.number(lock) == 0
    assert files(one.truth, "emc") not in {path for path, _ in one.machine.writes()[written:]}
