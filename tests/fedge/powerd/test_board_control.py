"""What the board control does at the edges: nonsense to put back, the fan, the caches, presets and lost zones."""

import pytest
from contracts.jetsons.kernel import Fault, KernelMachine

from fedge.powerd import board_control, knob_changes
from fedge.powerd.board_control import FAN_FULL_PWM, BoardControl, find_fan_file
from fedge.powerd.config import Config
from fedge.powerd.knobs import CpufreqPolicy, Hardware, KnobState
from fedge.powerd.mode_records import KnobTables, Mode, PowerdRefusal, Preset
from fedge.powerd.write_plan import EmcFiles, EmcState, LimitFiles, LimitSpan

FAN = "/sys/devices/pwm-fan/target_pwm"


@pytest.fixture
def machine(roots):
    return KernelMachine(str(roots.root("nano")), quick=True)


@pytest.fixture
def board(machine):
    return BoardControl(machine, Config())


def test_a_machine_that_is_no_jetson_is_refused(machine, refused):
    for name in ("model", "compatible"):
        machine.path(f"/proc/device-tree/{name}").write_text("x86")
    assert "no Jetson" in refused(BoardControl, machine, Config()).text


def test_a_cluster_with_another_table_gets_its_value_at_or_below():
    tables = {0: (400, 800, 1200), 2: (400, 700, 1300), 4: ()}
    policies = tuple(
        CpufreqPolicy(f"policy{core}", core, LimitFiles(f"{core}/low", f"{core}/high"), LimitSpan(1, 1), table)
        for core, table in tables.items()
    )
    hardware = Hardware({}, tables[0], (), "none", EmcFiles(), ())
    writes = knob_changes.plan_clocks(KnobState({}, policies, {}, EmcState()), hardware, Mode(cpu_khz=800), False)
    expected = {"0/low": 400, "0/high": 800, "2/low": 400, "2/high": 700, "4/low": 800, "4/high": 800}
    assert {one.path: one.value for one in writes} == expected


@pytest.mark.parametrize(
    "snapshot", [None, [], {"cpu": 3}, {"online": {"x": 1}}, {"emc": {}}, {"cpu": {"policy9": [1, float("inf")]}}]
)
def test_putting_back_nonsense_never_raises_and_is_told(board, snapshot):
    assert board.put_back(snapshot)


def test_the_fan_is_put_back_up_or_down_where_a_change_told_its_speed(machine, board):
    before, told = machine.read(FAN), []
    for percent, raw in ((100, "255"), (10, "26")):
        board.set_fan(percent, told.append)
        assert machine.read(FAN) == raw
        assert board.put_back(dict(board.snapshot(), **told.pop())) == []
        assert machine.read(FAN) == before
    board.set_fan(100)
    assert board.put_back(board.snapshot()) == []  # of one that was never told, nothing is known
    assert machine.read(FAN) == str(FAN_FULL_PWM)
    board.set_fan(0)
    assert machine.read(FAN) == "0"


def test_a_fan_that_cannot_be_read_is_not_set_and_one_that_is_gone_is_told(machine, board, refused):
    machine.path(FAN).write_text("much")
    assert "could not be put back" in refused(board.set_fan, 50).text
    assert machine.writes() == []
    machine.path(FAN).unlink()
    assert board.put_back({"fan": 100}) == ["fan: the fan's file is gone; it was at 100 of 255"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_fan_that_does_not_take_its_speed_names_what_is_left(machine, board, refused, times):
    machine.plant(Fault("refuse", FAN, "EIO", times=times))
    left = refused(board.set_fan, 50).left
    assert len(left) == times - 1
    assert all("target_pwm" in one for one in left)


def test_caches_are_dropped_without_waiting_for_the_disk(machine, board, refused, monkeypatch):
    monkeypatch.setattr("os.sync", lambda: pytest.fail("it waits"))
    board.drop_caches()
    assert machine.writes() == [("/proc/sys/vm/drop_caches", "3")]
    machine.plant(Fault("refuse", "*drop_caches", "EPERM"))
    assert refused(board.drop_caches).kind == "failed"


def test_a_board_without_a_fan_refuses_a_speed_and_of_two_outputs_the_fans_is_set(machine, board, refused):
    machine.path(FAN).unlink()
    assert refused(board.set_fan, 50).kind == "not-allowed"
    for number, name in ((7, "leds"), (8, "pwmfan")):
        folder = machine.path(f"/sys/class/hwmon/hwmon{number}")
        folder.mkdir(parents=True)
        (folder / "name").write_text(name)
        (folder / "pwm1").write_text("1")
    assert find_fan_file(machine) == "/sys/class/hwmon/hwmon8/pwm1"


def test_a_mode_that_is_set_already_is_returned_without_a_write(machine, board):
    now = board.mode()
    wanted = board.set_mode(now._replace(emc_hz=None))  # a stock mode may have lower limits, which a mode lets go
    written = machine.writes()
    assert board.set_mode(wanted._replace(emc_hz=None)) == wanted
    assert machine.writes() == written


def another(board):
    """The name of a preset that can be set and is not."""
    now = board.preset()
    return next(one.name for one in board.presets() if one.id != now.id and not one.needs_reboot)


def test_a_preset_whose_way_back_is_not_known_is_not_set(machine, board, monkeypatch, refused):
    works, name = machine.run, another(board)
    machine.path("/var/lib/nvpmodel/status").unlink()
    monkeypatch.setattr(machine, "run", lambda command: (1, "") if command[1] == "-q" else works(command))
    refusal = refused(board.set_preset, name)
    assert (refusal.kind, machine.writes()) == ("failed", [])
    assert "could not be put back" in refusal.text


def test_a_preset_that_nvpmodel_does_not_report_afterwards_is_undone(machine, board, monkeypatch, refused):
    works, now, name = machine.run, board.preset(), another(board)
    monkeypatch.setattr(machine, "run", lambda command: works(command) if command[1] == "-q" else (0, ""))
    refusal = refused(board.set_preset, name)
    assert (refusal.kind, refusal.got) == ("did-not-stick", now.id)
    assert "the state before is set again" in refusal.text


def test_a_preset_that_is_gone_cannot_be_put_back_and_is_told(board):
    assert board.put_back({"nvpmodel": 99}) == ["nvpmodel: preset 99 is gone"]


def test_when_all_zones_are_gone_the_sensors_are_lost_unless_there_never_were_any(machine, board, refused, monkeypatch):
    glob = machine.glob
    monkeypatch.setattr(machine, "glob", lambda pattern: [] if "thermal" in pattern else glob(pattern))
    assert refused(board.temperatures).kind == "sensor-lost"
    assert BoardControl(machine, Config()).temperatures() == {}


def test_a_knob_that_the_board_has_not_is_refused(refused):
    refusal = refused(board_control.check_mode, Mode(emc_hz=1600000000), KnobTables((1, 2), (403200,)), Config())
    assert refusal.kind == "not-allowed"


def test_a_refusal_lists_the_values_of_the_table(refused):
    assert "1, 2, 3, 4:" in refused(board_control.check_mode, Mode(cores=5), KnobTables((1, 2, 3, 4)), Config()).text


def test_a_knob_whose_whole_table_is_below_the_floor_keeps_its_highest_value():
    assert board_control.above_floor(KnobTables((1,), (102000,)), Config()) == KnobTables((1,), (102000,))


def test_a_preset_is_found_by_id_and_by_name_in_any_case():
    presets = [Preset(0, "MAXN", Mode(), False, True), Preset(8, "5W", Mode(), False, False)]
    assert board_control.find_preset(presets, "maxn") is board_control.find_preset(presets, 0)
    assert board_control.find_preset(presets, "8").name == "5W"
    with pytest.raises(PowerdRefusal, match=r"MAXN \(0\), 5W \(8\)"):
        board_control.find_preset(presets, "7W")
