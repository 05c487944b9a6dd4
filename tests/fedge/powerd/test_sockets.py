"""Who may ask: root, the daemon's own user, and the members of the group by the full list of their groups."""

import grp
import os
import socket
import stat
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedge.powerd import sockets
from fedge.powerd.sockets import AccessGate, Peer, group_id, peer_of, user_group_ids


def gate(groups, gid=500, clock=lambda: 0.0) -> AccessGate:
    return AccessGate("fedge", gid, 1000, groups, clock)


def test_root_and_the_daemons_own_user_need_no_group():
    def never(uid):
        raise AssertionError(uid)

    assert gate(never).denial_reason(Peer(1, 0, 0)) is None
    assert gate(never).denial_reason(Peer(1, 1000, 1000)) is None


def test_a_member_by_any_group_may_ask_and_others_are_told_the_group_and_the_command():
    assert gate(lambda uid: [100, 500]).denial_reason(Peer(1, 7, 100)) is None
    for denied in (gate(lambda uid: [100]), gate(lambda uid: [100], gid=None)):
        why = denied.denial_reason(Peer(1, 7, 500))  # the group that the kernel names is not asked for
        assert "uid 7" in why
        assert "usermod -aG fedge" in why
    assert "no user" in (gate(lambda uid: {}[uid]).denial_reason(Peer(1, 7, 100)) or "")


def test_an_answer_is_looked_up_anew_after_five_seconds():
    now_s, groups, asked = [0.0], [100], []

    def look_up(uid):
        asked.append(uid)
        return groups

    watched = gate(look_up, clock=lambda: now_s[0])
    assert watched.denial_reason(Peer(1, 7, 100)) is not None
    groups.append(500)
    now_s[0] = 4.9
    assert watched.denial_reason(Peer(2, 7, 100)) is not None
    now_s[0] = 5.0
    assert watched.denial_reason(Peer(3, 7, 100)) is None
    assert asked == [7, 7]


def test_what_is_remembered_is_bounded():
    watched = gate(lambda uid: [100])
    for uid in range(1, 5000):
        watched.denial_reason(Peer(1, uid, 100))
    assert len(watched._known) <= 1024


def test_the_kernel_says_who_connected():
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert peer_of(one) == Peer(os.getpid(), os.getuid(), os.getgid())


def test_a_uid_is_never_negative():
    class Told:
        def getsockopt(self, level, name, size):
            return struct.pack("=iII", 7, 4294967294, 4294967293)[:size]

    assert peer_of(Told()) == Peer(7, 4294967294, 4294967293)


def test_the_machines_own_users_and_groups_are_found():
    assert 0 in user_group_ids(0)
    assert group_id(grp.getgrgid(0).gr_name) == 0
    assert group_id("no-such-group-here") is None


def fake_owner(monkeypatch, uid):
    """Make every folder belong to a uid, and this process to 1000."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Path, "lstat", lambda folder: SimpleNamespace(st_mode=stat.S_IFDIR | 0o755, st_uid=uid))


@pytest.mark.parametrize("owner", [0, 1000])
def test_a_folder_of_root_or_of_this_user_is_used(tmp_path, monkeypatch, owner):
    with monkeypatch.context() as patch:
        fake_owner(patch, owner)
        sockets.make_folder(tmp_path, 0o755)


@pytest.mark.parametrize("owner", [1, 1001])
def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch, owner):
    with monkeypatch.context() as patch:
        fake_owner(patch, owner)
        with pytest.raises(sockets.CannotStart, match="belongs to uid"):
            sockets.make_folder(tmp_path, 0o755)
