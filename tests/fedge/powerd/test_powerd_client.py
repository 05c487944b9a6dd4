"""The caller's side: what is sent, what comes back, and what a person is told when nobody answers."""

import json
import socket
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

from fedge.powerd.powerd_client import PowerdClient, PowerdError


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(8)
    return listener


class Scripted:
    """A daemon that answers each line with the next of its replies; None ends the connection instead."""

    def __init__(self, path: Path, replies) -> None:
        self.asked, self._replies = [], list(replies)
        self._listener = listen(path)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._replies:
            link, _ = self._listener.accept()
            with link, link.makefile("rb") as lines:
                while self._replies:
                    if self._replies[0] is None:
                        self._replies.pop(0)
                        break
                    line = lines.readline()
                    if not line:
                        break
                    self.asked.append(json.loads(line.decode()))
                    link.sendall(self._replies.pop(0))
        self._listener.close()

    def wait(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="fp") as made:
        yield Path(made) / "s"


def unreachable(client) -> str:
    with pytest.raises(PowerdError) as caught:
        client.get()
    assert caught.value.kind == "unreachable"
    return caught.value.text


def test_each_call_sends_its_verb_and_only_what_was_given(path):
    daemon = Scripted(path, [b'{"ok":true,"mode":{"cores":2}}\n'] * 8)
    client = PowerdClient(str(path))
    assert client.describe() == {"mode": {"cores": 2}}
    client.get()
    client.set_mode({"cores": 2})
    client.set_mode({"cores": 2}, token="t", lock_min=True)
    client.set_preset("5W", token="t")
    client.restore()
    client.hold("ann", 15, token="t")
    client.drop_caches()
    client.close()
    daemon.wait()
    assert daemon.asked == [
        {"v": 1, "verb": "describe"},
        {"v": 1, "verb": "get"},
        {"v": 1, "verb": "set", "mode": {"cores": 2}},
        {"v": 1, "verb": "set", "mode": {"cores": 2}, "token": "t", "lock_min": True},
        {"v": 1, "verb": "set", "preset": "5W", "token": "t"},
        {"v": 1, "verb": "restore"},
        {"v": 1, "verb": "hold", "name": "ann", "seconds": 15, "token": "t"},
        {"v": 1, "verb": "drop-caches"},
    ]


def test_a_refusal_is_an_error_with_its_kind_and_what_was_read_back(path):
    reply = {"ok": False, "error": {"kind": "did-not-stick", "text": "it reads 5", "got": 5}}
    Scripted(path, [json.dumps(reply).encode() + b"\n"])
    with closing(PowerdClient(str(path))) as client, pytest.raises(PowerdError, match="it reads 5") as caught:
        client.set_mode({"cores": 2})
    assert (caught.value.kind, caught.value.got) == ("did-not-stick", 5)


def test_what_a_daemon_says_reaches_no_terminal_with_control_characters(path):
    Scripted(path, [json.dumps({"error": {"kind": "failed", "text": "a\x1b[2J\n b"}}).encode() + b"\n"])
    with closing(PowerdClient(str(path))) as client, pytest.raises(PowerdError) as caught:
        client.get()
    assert caught.value.text == "a?[2J b"


def test_a_connection_that_the_daemon_closed_meanwhile_is_opened_anew(path):
    daemon = Scripted(path, [b'{"ok":true}\n', None, b'{"ok":true,"again":1}\n'])
    client = PowerdClient(str(path))
    client.get()
    assert client.get() == {"again": 1}
    client.close()
    daemon.wait()
    assert len(daemon.asked) == 2


def test_a_word_sent_before_the_door_was_closed_is_heard(path):
    listener = listen(path)
    client = PowerdClient(str(path))
    client._link = client._connect()
    link, _ = listener.accept()
    link.sendall(b'{"ok":false,"error":{"kind":"failed","text":"128 connections are open"}}\n')
    link.close()
    with pytest.raises(PowerdError, match="128 connections"):
        client.get()
    client.close()
    listener.close()


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ([None, None], "ended the connection; see systemctl status fedge-powerd"),
        ([b"hello\n"], "no fedge-powerd"),
        ([b"[1]\n"], "no fedge-powerd"),
        ([b'{"ok":false}\n'], "no fedge-powerd"),
        ([b'{"ok":1}\n'], "no fedge-powerd"),
    ],
)
def test_what_is_no_reply_comes_from_no_daemon_of_ours(path, replies, words):
    Scripted(path, replies)
    assert words in unreachable(PowerdClient(str(path)))


def test_when_nobody_answers_the_text_says_why_and_how_to_look_for_the_daemon(path, monkeypatch):
    client = PowerdClient(str(path), timeout_s=0.05)
    assert "no socket" in unreachable(client)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        assert "nobody answers" in unreachable(client)
        silent.listen(1)
        assert "within 0.05 s" in unreachable(client)
    assert "systemctl status fedge-powerd" in unreachable(client)
    monkeypatch.setattr(client, "_connect", lambda: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert "be in group fedge" in unreachable(client)
