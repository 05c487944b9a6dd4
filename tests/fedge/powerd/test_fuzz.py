"""A real daemon under anything that can be sent: it answers, it leaks nothing, it writes only what is allowed."""

import contextlib
import json
import re
import socket
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("hypothesis", reason="property tests need hypothesis")

from contracts.jetsons.kernel import KernelMachine
from contracts.running_powerd import LIMIT_S, Running, board_root, receive_all, state_of
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedge.powerd.line_protocol import FIELDS
from fedge.powerd.powerd_client import PowerdClient, PowerdError

pytestmark = pytest.mark.slow

BOARD = "agx-orin-jp5"
CPU, GPU = r"scaling_(min|max)_freq", r"/sys/devices/.*/devfreq/[^/]+/(min|max)_freq"
DROPPED = "/proc/sys/vm/drop_caches"
ALLOWED = (
    ("cores", r"/sys/devices/system/cpu/cpu[1-9]\d*/online"),
    ("cpu_khz", rf"/sys/devices/system/cpu/cpufreq/policy\d+/{CPU}"),
    ("gpu_hz", GPU),
    ("emc_hz", r"/sys/kernel/debug/bpmp/debug/clk/emc/(rate|mrq_rate_locked)"),
    ("emc_hz", r"/sys/kernel/(nvpmodel_emc_cap/emc_iso_cap|nvpmodel_clk_cap/emc)"),
    ("fan", r"/sys/devices/.*/hwmon\d+/pwm1"),
    ("drop-caches", DROPPED),
)
MORE_FILES = (
    r"|/sys/devices/system/cpu/(online|offline)|.*/(cur_freq|scaling_cur_freq|affected_cpus|cpufreq)|/\.kernel/.*"
)
"""What the kernel itself changes when a knob is set; a cluster without cores has no policy files."""
MOST_GROWTH_KB = 4096
STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.just("../../etc/passwd"),
    st.just("/sys/kernel/debug"),
)


class Attacked:
    """The daemon, what it looked like before, and what a valid request can name."""

    def __init__(self, one: Running) -> None:
        self.one, self.client = one, one.wait_until_up()
        self.told = self.client.describe()
        self.machine = KernelMachine(str(one.root))
        self.before = state_of(one.root)

    def send(self, *parts: bytes) -> bytes:
        """What comes back for these bytes, sent one after the other and then half-closed."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(LIMIT_S)
            link.connect(self.one.socket)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for part in parts:
                    link.sendall(part)
                link.shutdown(socket.SHUT_WR)
            return receive_all(link)

    def ask(self, request) -> dict:
        lines = self.send(json.dumps(request).encode() + b"\n").splitlines()
        assert len(lines) == 1
        reply = json.loads(lines[0].decode())
        if reply["ok"] and "token" in reply and reply["left_s"]:  # a lease would shut out what comes next
            self.client.hold("fuzz", 0, token=reply["token"])
        return reply

    def check(self) -> None:
        """It answers, and no file changed that no verb may change."""
        assert self.client.get()["mode"]
        now = state_of(self.one.root)
        changed = [path for path in set(now) | set(self.before) if now.get(path) != self.before.get(path)]
        allowed = "|".join(pattern for _, pattern in ALLOWED) + MORE_FILES
        odd = [path for path in changed if not re.fullmatch(allowed, path)]
        whole = [path for path in odd if (path in now) == (path in self.before) or "/cpufreq/policy" not in path]
        assert whole == []

    def check_writes(self) -> None:
        """Every write there was: only to the knobs, only values of their tables, never below the floor."""
        for path, text in self.machine.writes():
            knob = next((knob for knob, pattern in ALLOWED if re.fullmatch(pattern, path)), None)
            assert knob is not None, path
            fit = {0, 1} if re.search("online|locked", path) else {0, *self.values(knob)}
            if path.endswith("scaling_max_freq"):
                fit = set(self.told["allowed"][knob])
            assert int(text) in fit, (path, text)

    def values(self, knob):
        """What a knob may be set to."""
        return {"fan": range(256), "drop-caches": [3]}.get(knob) or self.told["knobs"][knob]

    def footprint(self) -> tuple:
        """Open files, and resident memory in KiB."""
        proc = Path("/proc") / str(self.one.process.pid)
        resident = re.search(r"VmRSS:\s+(\d+)", (proc / "status").read_text())
        return len(list((proc / "fd").iterdir())), int(resident.group(1))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    root = board_root(BOARD, tmp_path_factory.mktemp("fuzz"), extras=["drop-caches", "fan", "lock-min"])
    with Running(root) as one:
        victim = Attacked(one)
        yield victim
        victim.client.close()
        assert one.end() == 0, one.log()
        assert {**state_of(root), DROPPED: b""} == {**victim.before, DROPPED: b""}  # the kernel shows what was asked
        victim.check_writes()
        assert "Traceback" not in one.log()


def fuzzed(examples: int):
    return settings(
        max_examples=examples, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    )


@fuzzed(100)
@given(st.lists(st.binary(max_size=3000) | st.sampled_from([b"\n", b"{", b'{"v":1,', b"\0", b"\xff\n"]), max_size=6))
def test_any_bytes_get_only_whole_replies_and_the_daemon_lives(attacked, parts):
    for line in attacked.send(*parts).splitlines():
        assert json.loads(line.decode())["ok"] is False
    attacked.check()


def knob_values(told):
    return {knob: st.sampled_from(values) if values else st.nothing() for knob, values in told["knobs"].items()}


@fuzzed(150)
@given(st.data())
def test_any_json_with_the_verbs_own_fields_is_answered_and_writes_only_what_is_allowed(attacked, data):
    verb = data.draw(st.sampled_from([*FIELDS, "set", "set", "reboot", ""]))
    knobs = {knob: values | STRANGE for knob, values in knob_values(attacked.told).items()}
    presets = st.sampled_from([preset["name"] for preset in attacked.told["presets"]])
    fields = {
        "mode": STRANGE | st.fixed_dictionaries({}, optional=dict(knobs, path=STRANGE)),
        "preset": STRANGE | presets,
        "token": STRANGE,
        "lock_min": STRANGE,
        "name": STRANGE,
        "seconds": STRANGE,
        "percent": STRANGE,
        "path": STRANGE,
    }
    request = data.draw(st.fixed_dictionaries({"v": st.just(1) | STRANGE}, optional=fields))
    reply = attacked.ask(dict(request, verb=verb))
    assert reply["ok"] or {"kind", "text"} <= set(reply["error"])
    attacked.check()


@fuzzed(40)
@given(st.data())
def test_any_mode_of_the_tables_is_set_or_refused_for_the_floor_and_read_back(attacked, data):
    optional = {knob: values for knob, values in knob_values(attacked.told).items() if not values.is_empty}
    mode = data.draw(st.fixed_dictionaries({}, optional=optional).filter(bool))
    reply = attacked.ask({"v": 1, "verb": "set", "mode": mode, "lock_min": data.draw(st.booleans())})
    below = any(value not in attacked.told["allowed"][knob] for knob, value in mode.items())
    if below:
        assert reply["error"]["kind"] == "below-floor"
    else:
        assert reply["ok"], reply
        assert {knob: reply["mode"][knob] for knob in mode} == mode
    attacked.check()


@fuzzed(20)
@example(0)
@example(37)
@given(STRANGE | st.integers(-300, 300) | st.floats(-10, 110))
def test_any_fan_speed_from_0_to_100_percent_is_set_and_nothing_else_is(attacked, percent):
    fit = not isinstance(percent, bool) and isinstance(percent, (int, float)) and 0 <= percent <= 100
    reply = attacked.ask({"v": 1, "verb": "fan", "percent": percent})
    assert reply["ok"] if fit else reply["error"]["kind"] == "bad-request"
    assert attacked.ask({"v": 1, "verb": "drop-caches"})["ok"]
    assert attacked.machine.writes()[-1] == (DROPPED, "3")
    attacked.check()


def test_a_hundred_clients_at_once_are_all_answered(attacked):
    failures = []

    def ask(number: int) -> None:
        client = PowerdClient(attacked.one.socket, LIMIT_S)
        try:
            for _ in range(2):
                client.get() if number % 10 else client.set_mode({"cores": 4 if number % 20 else 2})
        except PowerdError as error:
            failures.append(error)
        finally:
            client.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    attacked.check()


def test_nothing_leaks(attacked):
    def attack() -> None:
        for number in range(60):
            attacked.send(b"x" * 100000)
            attacked.send(b'{"v":1,"verb":"get"}\n' * 5)
            attacked.send(b'{"v":1,"verb":"hold","name":"%d"}\n{"half' % number)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
                gone.connect(attacked.one.socket)
                gone.sendall(b'{"v":1,"verb":"describe"}\n' * 5)
        attacked.check()

    attack()
    files, resident_kb = attacked.footprint()
    attack()
    attack()
    now_files, now_kb = attacked.footprint()
    until_s = time.monotonic() + 10.0  # the last connection may be closed a moment after its client has gone
    while now_files > files and time.monotonic() < until_s:
        time.sleep(0.05)
        now_files, now_kb = attacked.footprint()
    assert now_files <= files
    assert now_kb - resident_kb < MOST_GROWTH_KB
    print(f"open files {files} -> {now_files}, resident {resident_kb} -> {now_kb} KiB")
