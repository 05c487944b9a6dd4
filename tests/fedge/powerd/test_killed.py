"""The daemon is killed (SIGKILL) at each single step of a change; the next start restores the state found at first."""

import signal

import pytest
from contracts.jetsons import PLAYED
from contracts.jetsons.kernel import KernelMachine
from contracts.jetsons.nvpmodel import SWITCH
from contracts.running_powerd import LIMIT_S, Running, board_root, lowest, made_up_for, state_of

from fedge.powerd import nvpmodel, state_keeper
from fedge.powerd.powerd_client import PowerdClient, PowerdError

pytestmark = pytest.mark.slow

MOST_STEPS = 200
EVERY_WRITE = ("nano", "agx-xavier", "agx-orin-jp6")
"""One board of each generation of kernel files; the others are killed at ``SOME_WRITES``."""
SOME_WRITES = (0, 1, 4, 8)
"""Before the first write, after it, in the midst of the change, and late in it or in the restore."""


def another_preset(client: PowerdClient) -> None:
    """A stock mode that needs no reboot, then all back."""
    told, now = client.describe(), client.get()["preset"]
    fit = [one for one in told["presets"] if not one["needs_reboot"] and one["id"] != now["id"]]
    floor = told["floor"]["cores"]
    client.set_preset(next(one["name"] for one in fit if one["mode"].get("cores", floor) >= floor))
    client.restore()


def killed_at(root, change, **told) -> bool:
    """Whether a daemon told to die there died in the change; False when the change was over before."""
    with Running(root, **told) as one:
        client = one.wait_until_up()
        try:
            change(client)
        except PowerdError as error:
            if error.kind != "unreachable":
                raise
            assert one.process.wait(LIMIT_S) == -signal.SIGKILL
            return True
        finally:
            client.close()
        return False


def made_up_for_by_a_process(root, before) -> None:
    """The same, by the program as it is started."""
    with Running(root) as one:
        client = one.wait_until_up()
        assert state_of(root) == before
        told = client.get()
        assert (told["changed"], told["stopped"]) == (False, None)
        client.close()
        assert one.end() == 0, one.log()
    assert state_of(root) == before
    assert state_keeper.load_state(root / "var/lib/fedge-powerd") is None


def killed_everywhere(root, change, death: str, quick: int = 1) -> int:
    """Kill at step 0, 1, 2, ... until the change lives; how many steps it has."""
    before = state_of(root)
    for step in range(MOST_STEPS):
        if not killed_at(root, change, quick=quick, **{death: step}):
            assert state_of(root) == before
            return step
        made_up_for(root, before)
    raise AssertionError(f"still killed at step {MOST_STEPS}")


@pytest.mark.parametrize("name", EVERY_WRITE)
def test_killed_at_every_write_of_a_mode_change_the_next_start_restores_every_byte(name, scratch):
    root = board_root(name, scratch, extras=["lock-min"])
    assert killed_everywhere(root, lowest(root), "die_at_write") >= 10


@pytest.mark.parametrize("name", [name for name in PLAYED if name not in EVERY_WRITE])
def test_killed_at_some_writes_of_a_mode_change_the_next_start_restores_every_byte(name, scratch):
    root = board_root(name, scratch, extras=["lock-min"])
    before, change = state_of(root), lowest(root)
    for step in SOME_WRITES:
        assert killed_at(root, change, quick=1, die_at_write=step)
        made_up_for(root, before)


@pytest.mark.parametrize(("name", "quick"), [("nano", 0), ("agx-xavier", 1)])
def test_killed_around_nvpmodel_the_next_start_restores_every_byte(name, quick, scratch):
    root = board_root(name, scratch)
    assert killed_everywhere(root, another_preset, "die_at_write", quick) >= 2


def test_killed_at_every_step_of_saving_the_next_start_restores_every_byte(scratch):
    root = board_root("nano", scratch, extras=["lock-min"])
    assert killed_everywhere(root, lowest(root), "die_at_saving") >= 5


def test_killed_while_making_up_for_a_kill_the_next_start_still_restores_every_byte(scratch):
    root = board_root("nano", scratch, extras=["lock-min"])
    before = state_of(root)
    assert killed_at(root, lowest(root), die_at_write=5)
    for step in (0, 1, 2):
        with Running(root, die_at_write=step) as one:
            assert one.process.wait(LIMIT_S) == -signal.SIGKILL
    made_up_for_by_a_process(root, before)


def test_after_a_reboot_in_another_preset_the_one_found_is_set_again_be_it_below_the_floor(scratch):
    root = board_root("xavier-nx", scratch, floor={"cores": 6, "cpu_khz": 400000})
    folder = root / "var/lib/fedge-powerd"
    machine = KernelMachine(str(root), quick=True)
    found = nvpmodel.query_preset_id(machine)
    with Running(root, quick=1) as one:
        client = one.wait_until_up()
        client.set_preset("MODE_20W_6CORE")
        client.close()
        one.process.kill()
        assert one.process.wait(LIMIT_S) == -signal.SIGKILL
    assert nvpmodel.query_preset_id(machine) != found
    (root / "proc/sys/kernel/random/boot_id").write_text("another boot\n")
    switch = machine.path(SWITCH)
    switch.write_text("fails")
    with Running(root, quick=1) as one:
        client = one.wait_until_up()
        assert "nvpmodel" in client.get()["stopped"]
        assert state_keeper.load_state(folder).state["nvpmodel"] == found
        switch.write_text("")
        assert client.restore()["mode"]["cores"] == 4
        assert nvpmodel.query_preset_id(machine) == found
        told = client.get()
        assert (told["changed"], told["stopped"]) == (False, None)
        client.close()
        assert one.end() == 0, one.log()
    assert state_keeper.load_state(folder) is None
