"""What a person sees of a playbook."""

import io

import pytest
from rich.console import Console

from experiments.fleet.playbook_progress import (
    AnswerProgress,
    PlaybookProgress,
    build_progress_table,
    suggest_cure,
    summarize_playbook,
)
from experiments.fleet.playbook_runner import (
    CHANGED,
    FAILED,
    OK,
    PLAY,
    UNREACHABLE,
    PlaybookEvent,
    PlaybookState,
    apply_event,
)

STORY = (
    PlaybookEvent(PLAY, play="The server"),
    PlaybookEvent(OK, "hub", "The server", task="Look"),
    PlaybookEvent(PLAY, play="The boards"),
    PlaybookEvent(CHANGED, "nano-1", "The boards", "powerd", "Bring it"),
    PlaybookEvent(FAILED, "tx2-1", "The boards", "worker", "Unpack", "no space left on device"),
)
BOARDS = frozenset({"nano-1", "tx2-1", "thor-1"})


def shown() -> str:
    out, state = io.StringIO(), PlaybookState()
    with PlaybookProgress("provision", Console(file=out, force_terminal=False, width=100), lambda: 0.0) as progress:
        for event in STORY:
            state = apply_event(state, event)
            progress.update(state, event)
    return out.getvalue()


def told(*events: PlaybookEvent, check: bool = False) -> list[str]:
    state = PlaybookState()
    for event in events:
        state = apply_event(state, event)
    return summarize_playbook(state, check=check, boards=BOARDS, logins={})


def test_without_a_terminal_a_line_tells_each_host_s_end_of_a_play_and_each_failure_at_once():
    assert shown().splitlines() == [
        "The server: hub: 1 ok, 0 changed until now",
        "tx2-1 FAILED at 'worker: Unpack': no space left on device",
        "The boards: nano-1: 0 ok, 1 changed until now",
    ]


def test_a_reason_that_a_later_task_repeats_is_told_once():
    out, state = io.StringIO(), PlaybookState()
    with PlaybookProgress("up", Console(file=out, width=100), lambda: 0.0) as progress:
        for task, text in (("Knock", "no route"), ("Say so", "it cannot be reached: no route"), ("Look", "no room")):
            event = PlaybookEvent(FAILED, "nano-1", "The boards", task=task, text=text)
            state = apply_event(state, event)
            progress.update(state, event)

    assert [line.rpartition(": ")[2] for line in out.getvalue().splitlines()] == ["no route", "no room"]


def test_the_table_takes_names_as_they_are():
    out, state = io.StringIO(), apply_event(PlaybookState(), PlaybookEvent(OK, "[red]x", "p", task="[/nothing]"))
    Console(file=out, width=80).print(build_progress_table("up", state, 65.0))

    assert "[red]x" in out.getvalue()
    assert "[/nothing]" in out.getvalue()
    assert "65 s" in out.getvalue()


def test_a_summary_counts_names_what_failed_and_says_what_to_do():
    assert told(*STORY) == [
        "hub and 1 board done, changed 1 task",
        "tx2-1 FAILED at 'worker: Unpack': no space left on device",
        "  what to do: make room on it: `df -h` there says where (`ssh tx2-1`)",
        "not begun because of that: thor-1",
    ]


def test_a_second_time_changes_nothing_and_says_so():
    assert told(PlaybookEvent(OK, "nano-1"), PlaybookEvent(OK, "tx2-1")) == ["2 boards done, nothing had to change"]
    assert told(PlaybookEvent(OK, "nano-1"), check=True) == ["1 board done, nothing would change"]


def test_a_check_lists_what_would_change_on_each_host():
    assert told(*STORY[:4], check=True) == [
        "hub and 1 board done, 1 task would change something",
        "  nano-1:",
        "    powerd: Bring it",
    ]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Host key verification failed.", "log in once with `ssh me@10.0.0.7` and"),
        ("nobody@x: Permission denied (publickey).", "`ssh-copy-id me@10.0.0.7`"),
        ("Missing sudo password", "NOPASSWD"),
        ("ssh: connect to host x port 22: Connection timed out", "`ssh me@10.0.0.7`"),
        ("ssh: Could not resolve hostname nano-1", "ansible_host"),
        ("something {else}", "--limit nano-1"),
    ],
)
def test_each_kind_of_failure_has_its_cure(text, word):
    assert word in suggest_cure(PlaybookEvent(UNREACHABLE, "nano-1", text=text), {"nano-1": "me@10.0.0.7"})


def test_nothing_is_shown_where_nobody_looks():
    out = io.StringIO()
    with AnswerProgress(Console(file=out), ("srv",), frozenset):
        pass

    assert out.getvalue() == ""
