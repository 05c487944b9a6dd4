"""Record when Flower's apps start, push, pull, enter and leave; Python loads this where its folder is on PYTHONPATH."""

from __future__ import annotations

import json
import os
import sys
import time

STARTED = {"at_s": time.time()}
"""Approximate start of this process; of a forked one, the time of the fork."""


def _note(what: str, **facts: object) -> None:
    line = json.dumps({"what": what, "at_s": time.time(), "pid": os.getpid(), **facts}) + "\n"
    with open(os.environ["FEDGE_ROUND_TRACE"], "a", encoding="utf-8") as file:  # noqa: PTH123 -- loads nothing
        file.write(line)


def _watch_client() -> None:
    from flwr.clientapp.client_app import ClientApp

    answer = ClientApp.__call__

    def watched(self, message, context):
        fields = {"id": message.metadata.message_id}
        _note("entered", started_s=STARTED["at_s"], cpu_s=time.process_time(), **fields)
        reply = answer(self, message, context)
        metrics = reply.content.metric_records.get("metrics", {}) if reply.has_content() else {}
        _note("left", train_s=metrics.get("train_s"), cpu_s=time.process_time(), **fields)
        return reply

    ClientApp.__call__ = watched


def _began() -> None:
    STARTED["at_s"] = time.time()


def _watch_server() -> None:
    from flwr.superlink.grid.http_grid import HttpGrid

    push, pull = HttpGrid.push_messages, HttpGrid.pull_messages

    def watched_push(self, messages):
        messages, begun_s = list(messages), time.time()
        ids = list(push(self, messages))
        if messages:
            _note("pushed", begun_s=begun_s, ids=ids, kind=messages[0].metadata.message_type, run=self.run.run_id)
        return ids

    def watched_pull(self, message_ids):
        replies = list(pull(self, message_ids))
        if replies:
            _note("pulled", ids=[reply.metadata.reply_to_message_id for reply in replies])
        return replies

    HttpGrid.push_messages, HttpGrid.pull_messages = watched_push, watched_pull


if "FEDGE_ROUND_TRACE" in os.environ:
    _program = " ".join(sys.orig_argv[:3])
    if "flwr-clientapp" in _program:
        _watch_client()
    elif "ready.py" in _program:
        _watch_client()
        os.register_at_fork(after_in_child=_began)
    elif "flwr-serverapp" in _program:
        _watch_server()
