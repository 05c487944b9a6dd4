"""What boards and Flower send, as values; whatever is wrong is words for a user."""

from __future__ import annotations

import pytest
from flwr.app import Error, Message, RecordDict

from fedge.errors import RunFailed
from fedge.flower.messages import build_message, ensure_identity
from server.transport.message_codec import check_processes, decode_reply

ensure_identity()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (5, "the board was lost: it is off or cut off, or its SuperNode ended (Flower error 5)"),
        (8, "its client ended in the middle of its work; out of memory? its log says more (Flower error 8)"),
        (2, "Flower error 2: ValueError: no"),
    ],
)
def test_flowers_errors_are_told_in_words_where_they_mean_something_to_a_user(code, words):
    asked = build_message(RecordDict(), "query", 11)

    assert decode_reply("nano-1", Message(Error(code, "ValueError: no"), reply_to=asked)).answer.error == words


def test_a_lost_process_of_the_simulation_ends_the_run_and_an_error_of_the_client_does_not():
    asked = build_message(RecordDict(), "train", 11)
    died = Message(Error(0, "<class 'ray.exceptions.ActorDiedError'>:<'The actor died'>"), reply_to=asked)
    raised = Message(
        Error(2, "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ActorDiedError'>"), reply_to=asked
    )

    with pytest.raises(RunFailed, match=r"ActorDiedError\) while nano-1 worked"):
        check_processes(["nano-1"], died)
    with pytest.raises(RunFailed, match="it worked for nano-1 and 2 more"):
        check_processes(["nano-1", "nano-2", "nano-3"], died)
    check_processes(["nano-1"], raised)
