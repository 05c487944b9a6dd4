"""The server and its socket: many clients, slow ones, silent ones, and whose socket it is."""

import contextlib
import grp
import json
import os
import socket
import stat
import tempfile
import threading
import time
from pathlib import Path

import pytest
from contracts.running_powerd import receive_all

from fedge.powerd import sockets
from fedge.powerd.line_server import Connection, ConnectionLimits, LineServer
from fedge.powerd.sockets import Peer

LIMIT_S = 10.0
BIG = b"x" * (1 << 20) + b"\n"


def answer(line: bytes, uid: int) -> bytes:
    return BIG if line == b"big" else b"%d:" % uid + line + b"\n"


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="fp") as made:
        yield Path(made)


class Served:
    """A server in a thread, stopped through its wake-up."""

    def __init__(self, path: Path, **given) -> None:
        self.path, self.ticks, self._stopped = path, 0, False
        why_not = given.pop("why_not", lambda peer: None)
        self._listener = sockets.listen_at(path, None)
        self.server = LineServer(
            self._listener, given.pop("answer", answer), why_not, self._tick, ConnectionLimits(**given)
        )
        reader, self._writer = socket.socketpair()
        self._thread = threading.Thread(target=self.server.serve, args=(lambda: self._stopped, reader))
        self._thread.start()
        self._sockets = [reader]

    def _tick(self) -> None:
        self.ticks += 1

    def link(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(LIMIT_S)
        link.connect(str(self.path))
        self._sockets.append(link)
        return link

    def open(self) -> int:
        return len(self.server._open)

    def ask(self, sent: bytes, link=None) -> bytes:
        """Send this, over a connection that stays open, and give the first answer."""
        link = link or self.link()
        link.sendall(sent)
        return link.recv(100)

    def refusal(self, sent: bytes = b"") -> dict:
        """Send this over a connection of its own, and give the error before it ends."""
        link = self.link()
        with contextlib.suppress(OSError):
            link.sendall(sent)
        return json.loads(receive_all(link).decode())["error"]

    def holds(self, count: int) -> None:
        """Wait until this many connections are open."""
        until(lambda: self.open() == count)

    def close(self) -> None:
        self._stopped = True
        self._writer.send(b"!")
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        for one in [self._listener, self._writer, *self._sockets]:
            one.close()


@contextlib.contextmanager
def served(folder, **given):
    one = Served(folder / "s", **given)
    try:
        yield one
    finally:
        one.close()


def until(holds) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def test_a_half_closed_client_gets_every_answer_in_order_and_a_word_on_the_line_it_did_not_end(folder):
    with served(folder) as one:
        link = one.link()
        link.sendall(b"a\nb\nunfinished")
        link.shutdown(socket.SHUT_WR)
        first, second, last = receive_all(link).splitlines()
        assert [first, second] == [b"%d:" % os.getuid() + line for line in (b"a", b"b")]
        assert "no line end" in json.loads(last.decode())["error"]["text"]
        one.holds(0)


def test_a_line_that_is_too_long_is_refused_and_the_connection_ends(folder):
    with served(folder) as one:
        assert one.refusal(b"x" * 100000)["kind"] == "bad-request"
        one.holds(0)


def test_a_peer_that_may_not_ask_is_told_why_and_never_answered(folder):
    with served(folder, why_not=lambda peer: "not in group fedge") as one:
        assert one.refusal(b"a\nb\n") == {"kind": "not-allowed", "text": "not in group fedge"}


def test_one_connection_too_many_is_told_so(folder):
    with served(folder, connections=3) as one:
        links = [one.link() for _ in range(3)]
        one.holds(3)
        assert "3 connections are open" in one.refusal()["text"]
        links[0].close()
        one.holds(2)
        assert one.ask(b"a\n").endswith(b":a\n")


def test_no_user_can_take_all_connections_from_the_others(folder, monkeypatch):
    uids = [7]
    monkeypatch.setattr("fedge.powerd.line_server.peer_of", lambda link: Peer(1, uids[0], 0))
    with served(folder, connections=4, per_user=2) as one:
        links = [one.link() for _ in range(2)]
        one.holds(2)
        assert "2 connections of uid 7 are open" in one.refusal()["text"]
        uids[0] = 8
        assert one.ask(b"a\n") == b"8:a\n"
        links[0].close()
        one.holds(2)
        uids[0] = 7
        assert one.ask(b"a\n") == b"7:a\n"


def test_a_slow_reader_gets_all_of_a_big_reply_while_others_are_served(folder):
    with served(folder) as one:
        slow, quick = one.link(), one.link()
        slow.sendall(b"big\nbig\n")
        for _ in range(20):
            assert one.ask(b"a\n", quick).endswith(b":a\n")
        slow.shutdown(socket.SHUT_WR)
        assert receive_all(slow) == BIG + BIG


def test_a_reader_that_takes_nothing_is_closed_after_its_time(folder):
    with served(folder, slow_s=0.05, tick_s=0.01) as one:
        link = one.link()
        link.sendall(b"big\n")
        one.holds(1)
        one.holds(0)


def test_a_client_that_asks_on_and_reads_no_small_reply_is_closed_after_its_time(folder):
    with served(folder, slow_s=0.5, tick_s=0.01) as one:
        link = one.link()
        link.setblocking(False)
        ends_s, is_open = time.monotonic() + LIMIT_S, True
        while is_open:
            assert time.monotonic() < ends_s
            try:
                link.send(b"a\n" * 100)
            except BlockingIOError:
                time.sleep(0.001)
            except (BrokenPipeError, ConnectionResetError):
                is_open = False
        one.holds(0)


def test_a_client_that_reads_its_replies_is_not_overdue_however_long_the_server_was_busy():
    one, other = socket.socketpair()
    with one, other:
        connection, limits = Connection(one, Peer(1, 0, 0), 0.0), ConnectionLimits()
        assert connection.is_overdue(limits.idle_s + 1, limits)
        connection.unsent = b"reply\n"
        assert not connection.is_overdue(1e6, limits)
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                one.send(BIG)
        assert connection.is_overdue(limits.slow_s + 1, limits)


def test_a_client_that_says_nothing_or_never_ends_its_line_is_closed_after_its_time(folder):
    with served(folder, idle_s=0.2, tick_s=0.01) as one:
        silent, dribbling = one.link(), one.link()
        one.holds(2)
        with contextlib.suppress(OSError):
            while one.open():
                dribbling.send(b"x")
                time.sleep(0.01)
        one.holds(0)
        assert receive_all(silent) == b""


def test_a_client_that_is_gone_before_its_reply_harms_nobody(folder):
    with served(folder) as one:
        for _ in range(50):
            link = one.link()
            link.sendall(b"big\n")
            link.close()
        assert one.ask(b"a\n").endswith(b":a\n")
        one.holds(1)


def test_a_client_that_asks_without_end_does_not_keep_the_tick_from_coming(folder):
    with served(folder, tick_s=0.02) as one:
        link = one.link()
        link.setblocking(False)
        before, end_s = one.ticks, time.monotonic() + 20.0
        while one.ticks <= before + 5 and time.monotonic() < end_s:
            with contextlib.suppress(BlockingIOError):
                link.send(b"a\n" * 1000)
            with contextlib.suppress(BlockingIOError):
                link.recv(65536)
        assert one.ticks > before + 5


# The socket file


def test_the_socket_is_for_its_owner_and_group_alone_and_the_process_keeps_its_umask(folder):
    gid, before = os.getgid(), os.umask(0o022)
    try:
        with contextlib.closing(sockets.listen_at(folder / "s", gid)):
            found = (folder / "s").stat()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o660
    assert (found.st_uid, found.st_gid) == (os.getuid(), gid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to any group")
def test_root_gives_the_socket_to_the_group(folder):
    gid = max(group.gr_gid for group in grp.getgrall())
    with contextlib.closing(sockets.listen_at(folder / "s", gid)):
        assert (folder / "s").stat().st_gid == gid


def test_a_dead_daemons_socket_is_replaced_and_a_live_ones_is_not(folder):
    path = folder / "s"
    live = sockets.listen_at(path, None)
    with pytest.raises(sockets.CannotStart, match="answers at"):
        sockets.listen_at(path, None)
    assert path.exists()
    live.close()
    sockets.listen_at(path, None).close()


def test_what_is_no_socket_is_left_alone(folder):
    path = folder / "s"
    path.write_text("precious")
    with pytest.raises(sockets.CannotStart, match="no socket"):
        sockets.listen_at(path, None)
    assert path.read_text() == "precious"


def test_a_folder_is_made_with_its_rights_whatever_the_umask(folder):
    before = os.umask(0)
    try:
        sockets.make_folder(folder / "a" / "state", 0o700)
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "a" / "state").stat().st_mode) == 0o700
    sockets.make_folder(folder / "a" / "state", 0o700)


def test_a_folder_that_others_can_write_is_refused_with_the_command(folder):
    open_to_all = folder / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(sockets.CannotStart, match="chmod 755"):
        sockets.make_folder(open_to_all, 0o755)
    open_to_all.chmod(0o1777)
    sockets.make_folder(open_to_all, 0o755)
    with pytest.raises(sockets.CannotStart, match="chmod 700"):
        sockets.make_folder(open_to_all, 0o700)
    link = folder / "link"
    link.symlink_to(folder)
    with pytest.raises(sockets.CannotStart, match="no folder"):
        sockets.make_folder(link, 0o755)


def test_a_folder_belongs_to_one_daemon_at_a_time(folder):
    handle = sockets.lock_folder(folder)
    with pytest.raises(sockets.CannotStart, match="another daemon"):
        sockets.lock_folder(folder)
    os.close(handle)
    os.close(sockets.lock_folder(folder))


def test_what_a_client_asked_for_before_it_closed_is_not_carried_out(folder, caplog):
    """Three requests of one who is gone wait behind another's; one who only ended its requests is answered."""
    caplog.set_level("INFO")
    done, began, goes_on = [], threading.Event(), threading.Event()

    def slow(line: bytes, uid: int) -> bytes:
        done.append(line)
        if line == b"first":
            began.set()
            assert goes_on.wait(LIMIT_S)
        return b"ok\n"

    with served(folder, answer=slow) as one:
        first, gone, half = one.link(), one.link(), one.link()
        first.sendall(b"first\n")
        assert began.wait(LIMIT_S)
        gone.sendall(b"set\nset\nset\n")
        gone.close()
        half.sendall(b"half\n")
        half.shutdown(socket.SHUT_WR)
        goes_on.set()
        assert receive_all(half) == b"ok\n"
        one.holds(1)
    assert done == [b"first", b"half"]
    assert "is gone; 12 bytes of requests are not carried out" in caplog.text
