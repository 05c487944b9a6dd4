"""Ansible's events as small records, and what they add up to."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from experiments.fleet import playbook_runner
from experiments.fleet.playbook_runner import (
    CHANGED,
    FAILED,
    HIDDEN,
    IGNORED,
    OK,
    RESCUED,
    SKIPPED,
    PlaybookEvent,
    PlaybookState,
    apply_event,
)


def raw(kind: str, host: str = "nano-1", **data: Any) -> dict[str, Any]:
    return {"event": kind, "event_data": {"host": host, "play": "Boards", "task": "Do it", **data}}


def one(kind: str, **data: Any) -> PlaybookEvent:
    (event,) = playbook_runner.parse_events(raw(kind, **data))
    return event


def folded(*told: PlaybookEvent) -> PlaybookState:
    state = PlaybookState()
    for event in told:
        state = apply_event(state, event)
    return state


def test_a_result_becomes_its_status_with_role_and_task():
    assert one("runner_on_ok", res={"changed": False}, role="powerd").where == "powerd: Do it"
    assert one("runner_on_ok", res={"changed": True}).status == CHANGED
    assert one("runner_on_skipped", res={}).status == SKIPPED
    assert one("runner_on_failed", res={"msg": "no"}, ignore_errors=True).status == IGNORED


def test_a_failure_says_why_in_one_line():
    assert one("runner_on_failed", res={"msg": "Task failed: Action failed: no\nroom"}).text == "no room"
    assert one("runner_on_failed", res={"msg": "no answer: Task failed: no route"}).text == "no answer: no route"
    assert one("runner_on_failed", res={"msg": "non-zero return code", "stderr": "boom"}).text.endswith("code: boom")
    assert one("runner_on_failed", res={"results": [{}, {"failed": True, "msg": "second"}]}).text == "second"


def test_a_long_failure_is_cut():
    assert len(one("runner_on_failed", res={"msg": "x" * 9999}).text) == playbook_runner.LONGEST_TEXT


def test_a_task_with_a_secret_shows_nothing_of_its_failure():
    assert one("runner_on_failed", res={"censored": "hidden", "msg": "hunter2"}).text == HIDDEN
    assert (
        one("runner_on_failed", res={"results": [{"failed": True, "_ansible_no_log": True, "msg": "hunter2"}]}).text
        == HIDDEN
    )


def test_what_says_nothing_to_a_person_is_no_event():
    assert not list(playbook_runner.parse_events({"event": "verbose", "stdout": "text"}))
    assert not list(playbook_runner.parse_events(raw("playbook_on_task_start")))


def test_a_failure_that_was_rescued_is_none_when_the_counts_come():
    counts = {"processed": {"nano-1": 1, "tx2-1": 1}, "failures": {"tx2-1": 1}, "dark": {}}
    failed = [PlaybookEvent(FAILED, host, "Boards", task="Do it", text="no") for host in ("nano-1", "tx2-1")]
    state = folded(*failed, *playbook_runner.parse_events({"event": "playbook_on_stats", "event_data": counts}))

    assert set(state.failures_by_host) == {"tx2-1"}
    assert state.hosts["nano-1"].failed == 0


def test_a_host_that_goes_on_in_the_next_play_was_rescued():
    assert not folded(PlaybookEvent(FAILED, "nano-1", "First"), PlaybookEvent(OK, "nano-1", "Second")).failures_by_host


def test_a_host_that_failed_stays_so_while_its_play_tidies_up():
    assert set(
        folded(PlaybookEvent(FAILED, "nano-1", "First"), PlaybookEvent(OK, "nano-1", "First")).failures_by_host
    ) == {"nano-1"}


statuses = st.sampled_from([OK, CHANGED, SKIPPED, IGNORED, FAILED, RESCUED])


@given(
    st.lists(
        st.builds(
            PlaybookEvent, status=statuses, host=st.sampled_from("ab"), play=st.sampled_from("pq"), task=st.just("t")
        )
    )
)
def test_counts_are_those_of_the_events(told):
    state = folded(*told)

    assert state.change_count == sum(event.status == CHANGED for event in told)
    assert sum(host.ok for host in state.hosts.values()) == sum(event.status in {OK, IGNORED} for event in told)
    assert set(state.hosts) == {event.host for event in told}
    assert all(state.hosts[name].failed for name in state.failures_by_host)
