"""What each verb does, with a board in memory and a clock that the test moves."""

import json
import logging

import pytest
from contracts.fake_power_board import LOW, MAXN, TOP, FakeBoard

import fedge
from fedge.powerd import state_keeper
from fedge.powerd.config import Config
from fedge.powerd.mode_records import Mode
from fedge.powerd.state_keeper import StateKeeper
from fedge.powerd.verb_handlers import VERSION, Daemon

HALF = {"cores": 2, "cpu_khz": 408000}


class Bench:
    """A daemon with its board, its folder and its clock."""

    def __init__(self, folder, **fields) -> None:
        self.board, self.folder, self.now_s = FakeBoard(), folder, 1000.0
        self.config = Config(**fields)
        self.daemon = self.start()

    def start(self, boot="boot-1") -> Daemon:
        names = iter(f"token-{number}" for number in range(100))
        self.keeper = StateKeeper(self.board, self.folder, boot)
        self.daemon = Daemon(self.board, self.keeper, self.config, lambda: self.now_s, lambda: next(names))
        self.daemon.start()
        return self.daemon

    def ask(self, verb, **fields):
        line = json.dumps(dict(fields, v=1, verb=verb)).encode()
        return json.loads(self.daemon.answer(line, 1234).decode())

    def done(self, verb, **fields):
        reply = self.ask(verb, **fields)
        assert reply.pop("ok"), reply
        return reply

    def refused(self, verb, **fields):
        reply = self.ask(verb, **fields)
        assert not reply["ok"], reply
        return reply["error"]

    def stored(self):
        return state_keeper.load_state(self.folder)


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def generous(tmp_path) -> Bench:
    return Bench(tmp_path, extras=("drop-caches", "fan", "lock-min"))


def test_describe_tells_what_the_board_has_and_what_is_allowed(bench):
    told = bench.done("describe")
    assert fedge.__version__ == VERSION
    assert (told.pop("knobs")["cores"], told.pop("allowed")["cores"]) == ([1, 2, 3, 4], [2, 3, 4])
    assert [preset["mode"] for preset in told.pop("presets")] == [MAXN.mode.to_wire(), LOW.mode.to_wire()]
    assert told.pop("board")["model"] == "a fake board"
    floor = {"cores": 2, "cpu_khz": 400000}
    assert told == {
        "protocol": 1, "version": VERSION, "floor": floor, "extras": [], "emc": "lock", "hottest_c": 95.0
    }  # fmt: skip


def test_get_tells_what_is_set_and_who_holds(bench):
    bench.done("hold", name="ann", seconds=15)
    assert bench.done("get") == {
        "mode": TOP.to_wire(),
        "limits": bench.board.limits(),
        "preset": {"id": 0, "name": "MAXN"},
        "lease": {"name": "ann", "left_s": 15.0},
        "changed": False,
        "temperature_c": 40.0,
        "stopped": None,
    }


def test_a_mode_is_set_and_stays_until_restore(bench):
    assert bench.done("set", mode=HALF)["mode"] == TOP._replace(**HALF).to_wire()
    bench.now_s += 10000
    bench.daemon.tick()
    assert bench.done("get")["changed"] is True
    assert bench.done("restore")["mode"] == TOP.to_wire()
    assert bench.done("get")["changed"] is False


def test_the_state_found_is_on_disk_before_the_first_change_and_gone_after_the_last(bench, monkeypatch):
    assert bench.stored() is None
    seen = []
    real = bench.board.set_mode

    def watched(mode, lock_min, first):
        assert bench.board.snapshots == [True]  # the one of the start

        def spied(found, beside):
            first(found, beside)
            seen.append(bench.stored())

        return real(mode, lock_min, spied)

    monkeypatch.setattr(bench.board, "set_mode", watched)
    bench.done("set", mode=HALF)
    assert seen[0].state["mode"] == list(TOP)
    bench.done("set", mode={"cores": 3})
    assert seen[1].state["mode"] == list(TOP)
    bench.done("restore")
    assert bench.stored() is None


def full(folder, state):
    """Save nothing: the disk is full."""
    raise OSError(28, "No space left on device")


def test_when_the_state_found_cannot_be_stored_nothing_is_changed(bench, monkeypatch):
    monkeypatch.setattr(state_keeper, "save_state", full)
    error = bench.refused("set", mode=HALF)
    assert error["kind"] == "failed"
    assert "nothing was changed" in error["text"]
    assert bench.board.events == []


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ZeroDivisionError()])
def test_a_verb_that_breaks_is_refused_with_where_its_cause_stands(bench, monkeypatch, error):
    def broken(*arguments):
        raise error

    monkeypatch.setattr(bench.board, "set_mode", broken)
    refused = bench.refused("set", mode=HALF)
    assert refused["kind"] == "failed"
    assert refused["text"].endswith("see journalctl -u fedge-powerd")
    assert ("Input/output error" in refused["text"]) == isinstance(error, OSError)
    assert bench.done("get")["changed"] is False


def test_a_set_that_does_not_stick_tells_what_was_read_back_and_leaves_nothing_stored(bench):
    bench.board.sticks = False
    error = bench.refused("set", mode=HALF)
    assert error["kind"] == "did-not-stick"
    assert error["got"] == 1
    assert bench.stored() is None


def test_what_the_board_refuses_is_never_stored_and_costs_no_look(generous, monkeypatch):
    def never(folder, state):
        raise AssertionError("stored")

    monkeypatch.setattr(state_keeper, "save_state", never)
    taken = len(generous.board.snapshots)
    assert generous.refused("set", mode={"cores": 5})["kind"] == "off-table"
    assert generous.refused("set", mode={"cores": 1})["kind"] == "below-floor"
    assert generous.refused("set", preset="6W")["kind"] == "off-table"
    generous.board.fan = None
    assert generous.refused("fan", percent=20)["kind"] == "not-allowed"
    assert len(generous.board.snapshots) == taken


def test_a_mode_that_is_set_already_is_told_and_nothing_is_stored_or_owed(bench, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    taken = len(bench.board.snapshots)
    monkeypatch.setattr(state_keeper, "save_state", lambda folder, state: 1 / 0)
    assert bench.done("set", mode={"cores": 4, "cpu_khz": 1479000})["mode"] == TOP.to_wire()
    assert bench.done("get")["changed"] is False
    assert len(bench.board.snapshots) == taken
    assert "set by" not in caplog.text


def test_nvpmodel_is_asked_again_only_where_a_preset_was_set(bench):
    bench.board.snapshots.clear()
    bench.done("set", mode=HALF)
    bench.done("set", mode={"cores": 4, "cpu_khz": 1479000})
    assert bench.board.snapshots == [False]
    bench.done("set", preset="5W")
    bench.done("set", preset="MAXN")
    assert bench.board.snapshots == [False, True]
    assert bench.done("get")["changed"] is False


def test_get_tells_the_preset_that_was_put_back_at_once(bench):
    bench.done("set", preset="5W")
    assert bench.done("get")["preset"]["name"] == "5W"
    bench.done("restore")
    assert bench.done("get")["preset"]["name"] == "MAXN"


def test_changed_tells_of_the_daemons_own_changes_alone(bench):
    bench.board.now = TOP._replace(cores=3)  # by somebody at a terminal
    told = bench.done("get")
    assert (told["changed"], told["mode"]["cores"]) == (False, 3)
    assert bench.daemon.end() is True
    assert bench.board.now.cores == 3
    assert bench.done("restore")["mode"] == TOP.to_wire()  # asked for in so many words


@pytest.mark.parametrize(
    ("verb", "fields", "kind", "word"),
    [
        ("reboot", {}, "unknown-verb", "known: describe, get, set"),
        ("get", {"colour": 1}, "bad-request", "fields of get: none"),
        ("set", {}, "bad-request", "either"),
        ("set", {"mode": HALF, "preset": "5W"}, "bad-request", "either"),
        ("set", {"mode": {}}, "bad-request", "cores"),
        ("set", {"mode": [1]}, "bad-request", "cores"),
        ("set", {"mode": {"watts": 5}}, "bad-request", "known: cores, cpu_khz, gpu_hz, emc_hz"),
        ("set", {"mode": {"cores": 2.0}}, "bad-request", "whole number"),
        ("set", {"mode": {"cores": True}}, "bad-request", "whole number"),
        ("set", {"mode": {"cores": 5}}, "off-table", "5"),
        ("set", {"mode": {"cores": 1}}, "below-floor", "1"),
        ("set", {"preset": 1}, "bad-request", "preset"),
        ("set", {"preset": "5W", "lock_min": 1}, "bad-request", "true or false"),
        ("set", {"mode": HALF, "lock_min": True}, "not-allowed", "extras"),
        ("set", {"mode": HALF, "token": 5}, "bad-request", "token"),
        ("set", {"mode": HALF, "token": "old"}, "not-holder", "ended"),
        ("restore", {"token": "old"}, "not-holder", "ended"),
        ("hold", {"seconds": 5}, "bad-request", "name"),
        ("hold", {"name": "", "seconds": 5}, "bad-request", "1 to 64"),
        ("hold", {"name": "a\nb", "seconds": 5}, "bad-request", "printable"),
        ("hold", {"name": "a" * 65, "seconds": 5}, "bad-request", "64"),
        ("hold", {"name": "ann"}, "bad-request", "seconds"),
        ("hold", {"name": "ann", "seconds": "5"}, "bad-request", "number"),
        ("hold", {"name": "ann", "seconds": 10**400}, "bad-request", "300"),
        ("hold", {"name": "ann", "seconds": 300.001}, "bad-request", "300"),
        ("hold", {"name": "ann", "seconds": -1}, "bad-request", "300"),
        ("hold", {"name": "ann", "seconds": 0}, "bad-request", "without a lease"),
        ("drop-caches", {}, "not-allowed", "extras"),
        ("fan", {"percent": 50}, "not-allowed", "extras"),
    ],
)
def test_what_is_not_right_is_refused_and_changes_nothing(bench, verb, fields, kind, word):
    error = bench.refused(verb, **fields)
    assert error["kind"] == kind
    assert word in error["text"]
    assert bench.board.events == []
    assert bench.stored() is None


def test_a_lease_shuts_others_out_and_names_its_holder(bench):
    token = bench.done("hold", name="ann", seconds=15)["token"]
    for verb, fields in (("set", {"mode": HALF}), ("restore", {}), ("hold", {"name": "ben", "seconds": 5})):
        for guess, kind in (
            ({}, "held"),
            ({"token": "guess"}, "not-holder"),
            ({"token": "\u00e9 \ud800"}, "not-holder"),
        ):
            error = bench.refused(verb, **guess, **fields)
            assert error["kind"] == kind
            assert "ann" in error["text"]
            assert token not in error["text"]
    bench.done("set", mode=HALF, token=token)


def test_a_lease_that_is_not_renewed_ends_and_the_state_found_is_put_back(bench):
    token = bench.done("hold", name="ann", seconds=15)["token"]
    bench.done("set", mode=HALF, token=token)
    bench.now_s += 14
    assert bench.done("hold", name="ann", seconds=15, token=token)["left_s"] == 15.0
    bench.now_s += 14.9
    bench.daemon.tick()
    assert bench.board.now != TOP
    bench.now_s += 0.1
    bench.daemon.tick()
    assert bench.board.now == TOP
    assert bench.refused("set", mode=HALF, token=token)["kind"] == "not-holder"
    bench.done("hold", name="ben", seconds=5)


def test_a_lease_ends_in_time_also_for_a_request_that_comes_before_the_tick(bench):
    token = bench.done("hold", name="ann", seconds=15)["token"]
    bench.done("set", mode=HALF, token=token)
    bench.now_s += 15
    assert bench.done("get")["mode"] == TOP.to_wire()


def test_a_lease_that_is_given_back_restores(bench):
    token = bench.done("hold", name="ann", seconds=15)["token"]
    bench.done("set", mode=HALF, token=token)
    assert bench.done("hold", name="ann", seconds=0, token=token)["left_s"] == 0
    assert bench.board.now == TOP
    assert bench.done("get")["lease"] is None


def test_a_board_that_gets_too_hot_is_put_back_and_set_again_only_when_it_is_cooler(bench):
    bench.done("set", mode=HALF)
    bench.board.celsius = {"GPU-therm": 95.5}
    bench.daemon.tick()
    assert bench.board.now == TOP
    assert bench.refused("set", mode=HALF)["kind"] == "too-hot"
    assert "95.5" in bench.done("get")["stopped"]
    bench.board.celsius = {"GPU-therm": 92.0}
    bench.daemon.tick()
    assert bench.refused("set", mode=HALF)["kind"] == "too-hot"
    bench.board.celsius = {"GPU-therm": 89.0}
    bench.daemon.tick()
    bench.done("set", mode=HALF)


def test_a_lost_sensor_puts_back_and_stops(bench):
    bench.done("set", mode=HALF)
    bench.board.celsius = None
    bench.daemon.tick()
    assert bench.board.now == TOP
    error = bench.refused("set", mode=HALF)
    assert error["kind"] == "sensor-lost"
    assert "CPU-therm" in error["text"]
    assert bench.done("get")["temperature_c"] is None


def test_what_cannot_be_put_back_is_told_and_tried_again(bench):
    bench.done("set", mode=HALF)
    bench.board.puts_back = False
    error = bench.refused("restore")
    assert "gpu max_freq reads 1" in error["text"]
    assert bench.refused("set", mode=HALF)["kind"] == "failed"
    assert bench.stored() is not None
    bench.board.puts_back = True
    bench.daemon.tick()
    assert bench.board.now != TOP
    bench.now_s += 10
    bench.daemon.tick()
    assert bench.board.now == TOP
    bench.done("set", mode=HALF)


def test_extras_that_are_on_do_what_they_say(generous):
    generous.done("drop-caches")
    generous.done("fan", percent=20)
    generous.done("set", mode=HALF, lock_min=True)
    assert generous.board.events == [("drop caches",), ("fan", 20), ("set", Mode(2, 408000, None, None), True)]
    assert generous.refused("fan", percent=101)["kind"] == "bad-request"
    assert generous.refused("set", preset="5W", lock_min=True)["kind"] == "bad-request"
    generous.done("restore")
    assert generous.board.fan == 30


def test_an_end_that_cannot_put_back_says_so_and_keeps_the_stored_state(bench):
    bench.done("set", mode=HALF)
    bench.board.puts_back = False
    assert bench.daemon.end() is False
    assert bench.stored() is not None


def test_after_a_crash_the_next_start_puts_back_what_was_found_at_first(bench):
    bench.done("set", mode=HALF)
    bench.start()
    assert bench.board.now == TOP
    assert bench.stored() is None
    bench.done("set", mode=HALF)
    assert bench.done("restore")["mode"] == TOP.to_wire()


def test_after_a_crash_that_cannot_be_made_up_for_nothing_is_set_until_it_can(bench):
    bench.done("set", mode=HALF)
    bench.board.puts_back = False
    bench.start()
    assert bench.refused("set", mode=HALF)["kind"] == "failed"
    bench.board.puts_back = True
    assert bench.done("restore")["mode"] == TOP.to_wire()
    bench.done("set", mode=HALF)


def test_after_a_reboot_only_the_nvpmodel_mode_is_set_again(bench):
    bench.done("set", preset="5W")
    bench.board.events.clear()
    bench.start("boot-2")
    assert bench.board.events == [("put back",), ("nvpmodel", 0)]
    assert bench.stored() is None


def test_after_a_reboot_that_left_the_nvpmodel_mode_nothing_is_set(bench):
    bench.done("set", mode=HALF)
    bench.board.events.clear()
    bench.start("boot-2")
    assert bench.board.events == [("put back",)]  # of the mode's id alone
    assert bench.board.now != TOP
    assert bench.keeper.found["mode"] == list(bench.board.now)


def test_a_machine_that_does_not_know_its_boot_never_takes_an_old_state_for_its_own(bench):
    bench.start("")
    bench.done("set", mode=HALF)
    bench.board.events.clear()
    bench.start("")
    assert bench.board.events == [("put back",)]
    assert bench.board.now != TOP


def test_a_corrupt_stored_state_does_not_stop_the_start(bench, caplog):
    (bench.folder / state_keeper.FILE).write_text("{")
    bench.start()
    assert "found.json.corrupt" in caplog.text
    bench.done("set", mode=HALF)


def test_the_log_says_who_set_what_and_no_secret(bench, caplog):
    caplog.set_level(logging.DEBUG)
    token = bench.done("hold", name="ann", seconds=15)["token"]
    bench.done("set", mode={"cores": 2}, token=token)
    bench.refused("set", mode={"cores": 5}, token=token)
    bench.refused("set", mode={"cores": 2}, token="guessed")
    assert "uid 1234 (ann)" in caplog.text
    assert "from {'cores': 4" in caplog.text
    assert "to {'cores': 2" in caplog.text
    assert "off-table" in caplog.text
    assert token not in caplog.text
    assert "guessed" not in caplog.text


def test_a_slip_of_ours_is_a_reply_and_not_the_end(bench, monkeypatch, caplog):
    monkeypatch.setattr(bench.board, "identity", lambda: 1 / 0)
    assert bench.refused("describe")["kind"] == "failed"
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.setattr(bench.board, "temperatures", lambda: 1 / 0)
    bench.daemon.tick()
    bench.done("get")


# Leases and slow work


def slowly(bench, monkeypatch, name, seconds) -> None:
    """Let the board take so long for this."""
    real = getattr(bench.board, name)

    def slow(*given, **named):
        bench.now_s += seconds
        return real(*given, **named)

    monkeypatch.setattr(bench.board, name, slow)


def test_a_lease_stands_still_while_the_daemon_works_and_hears_no_renewal(bench, monkeypatch):
    slowly(bench, monkeypatch, "set_preset", 40.0)
    token = bench.done("hold", name="ann", seconds=15)["token"]
    bench.now_s += 10
    bench.done("set", preset="5W", token=token)
    bench.daemon.tick()
    assert bench.done("get")["lease"] == {"name": "ann", "left_s": 5.0}
    assert bench.done("hold", name="ann", seconds=15, token=token)["left_s"] == 15.0
    assert bench.board.id == 1


def test_a_lease_stands_still_during_a_slow_tick_too(bench, monkeypatch):
    token = bench.done("hold", name="ann", seconds=15)["token"]
    slowly(bench, monkeypatch, "temperatures", 20.0)
    bench.daemon.tick()
    assert bench.done("hold", name="ann", seconds=15, token=token)["left_s"] == 15.0


def test_no_flood_of_short_requests_keeps_a_lease_that_nobody_renews(bench, monkeypatch):
    bench.done("hold", name="ann", seconds=15)
    slowly(bench, monkeypatch, "mode", 0.9)
    for _ in range(17):
        bench.done("get")
    assert bench.done("get")["lease"] is None


# What is found after a reboot


def test_after_a_reboot_what_the_board_refuses_at_first_is_owed_and_then_taken_for_the_state_found(bench):
    bench.done("set", preset="5W")
    bench.board.puts_back = False
    for boot in ("boot-2", "boot-2", "boot-3"):  # killed and started again meanwhile
        bench.start(boot)
        assert bench.stored().state["nvpmodel"] == 0
        assert "put back" in bench.done("get")["stopped"]
        assert bench.refused("set", mode=HALF)["kind"] == "failed"
    bench.board.puts_back = True
    bench.now_s += 10
    bench.daemon.tick()
    assert (bench.board.id, bench.board.now, bench.stored()) == (0, TOP, None)
    bench.done("set", mode=HALF)
    assert (bench.stored().boot, bench.stored().state["mode"]) == ("boot-3", list(TOP))
    assert bench.done("restore")["mode"] == TOP.to_wire()


def test_after_a_reboot_a_mode_below_the_floor_is_set_again_for_it_was_there_before(bench):
    bench.board.id, bench.board.now = 1, TOP._replace(**LOW.mode.to_wire())
    bench.start()
    bench.done("set", preset="MAXN")
    bench.board.set_preset = None  # which has the floor
    bench.start("boot-2")
    assert (bench.board.id, bench.stored()) == (1, None)
    assert bench.keeper.found["nvpmodel"] == 1


def test_a_preset_is_put_back_though_nvpmodel_was_silent_when_the_daemon_started(bench):
    bench.board.tells_preset = False
    bench.start()
    bench.board.tells_preset = True
    bench.done("set", preset="5W")
    assert bench.stored().state["nvpmodel"] == 0
    bench.done("restore")
    assert (bench.board.id, bench.board.now) == (0, TOP)


# The fan

HOT, COOL = {"GPU-therm": 96.0}, {"GPU-therm": 80.0}


@pytest.mark.parametrize("celsius", [HOT, None])
def test_a_hot_or_blind_board_gets_full_fan_until_it_is_cool_and_then_the_speed_before_us(generous, celsius):
    generous.board.fan = 60  # by itself, since the daemon's start
    generous.done("fan", percent=0)
    assert generous.stored().state["fan"] == 60
    generous.board.celsius = celsius
    generous.daemon.tick()
    assert generous.board.fan == 100
    generous.done("restore")
    assert generous.board.fan == 100
    assert generous.refused("fan", percent=0)["kind"] == ("too-hot" if celsius else "sensor-lost")
    generous.board.celsius = COOL
    generous.daemon.tick()
    assert (generous.board.fan, generous.stored()) == (60, None)


def test_a_lease_that_ends_on_a_hot_board_leaves_the_fan_at_full(generous):
    token = generous.done("hold", name="ann", seconds=15)["token"]
    generous.done("fan", percent=0, token=token)
    generous.board.celsius = HOT
    generous.now_s += 15
    generous.daemon.tick()
    generous.daemon.tick()
    assert generous.board.fan == 100


def test_a_fan_that_nobody_slowed_blows_too_and_a_lost_disk_does_not_keep_it_from_that(generous, monkeypatch):
    monkeypatch.setattr(state_keeper, "save_state", full)
    generous.board.celsius = HOT
    generous.daemon.tick()
    assert generous.board.fan == 100


def test_without_the_extra_the_fan_is_never_touched(bench):
    bench.board.celsius = HOT
    bench.daemon.tick()
    assert bench.board.fan == 30


def test_a_daemon_that_ends_on_a_hot_board_leaves_the_fan_to_the_next_one(generous):
    generous.done("set", mode=HALF)
    generous.board.celsius = HOT
    generous.daemon.tick()
    assert generous.daemon.end() is True
    assert (generous.board.now, generous.board.fan) == (TOP, 100)
    generous.board.celsius = COOL
    generous.start()
    assert (generous.board.fan, generous.stored()) == (30, None)


def test_a_fan_that_was_sped_up_is_slowed_again(generous):
    generous.done("set", mode=HALF)
    generous.done("fan", percent=90)
    generous.done("set", mode={"cores": 4, "cpu_khz": 1479000})
    assert generous.done("get")["changed"] is True  # the fan's
    generous.done("restore")
    assert (generous.board.fan, generous.stored()) == (30, None)


# Failures within failures


def test_a_set_that_is_not_undone_is_owed_told_and_tried_again(bench):
    bench.board.sticks = bench.board.undoes = False
    assert bench.refused("set", mode=HALF)["kind"] == "did-not-stick"
    assert "gpu: it is 1" in bench.done("get")["stopped"]
    bench.board.sticks = True
    assert bench.refused("set", mode=HALF)["kind"] == "failed"
    bench.now_s += 10
    bench.daemon.tick()
    assert bench.board.events == [("put back",)]
    assert bench.done("get")["stopped"] is None
    bench.done("set", mode=HALF)


def test_a_board_that_cannot_be_read_afterwards_does_not_hide_what_became_of_the_set(bench, monkeypatch):
    bench.board.sticks = False

    def gone(mode, lock_min, first, real=bench.board.set_mode):
        try:
            return real(mode, lock_min, first)
        finally:
            bench.board.readable = False

    monkeypatch.setattr(bench.board, "set_mode", gone)
    error = bench.refused("set", mode=HALF)
    assert (error["kind"], error["got"]) == ("did-not-stick", 1)
    told = bench.done("get")
    assert (told["mode"], told["limits"], told["changed"]) == ({}, {}, True)
    assert "min_freq is gone" in told["stopped"]
    bench.board.sticks = True
    bench.board.readable = True
    assert bench.done("set", mode=HALF)["mode"]["cores"] == 2
