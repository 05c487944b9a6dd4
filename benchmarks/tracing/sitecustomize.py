"""Record when Flower's ServerApps push and pull; Python loads this where its folder is on PYTHONPATH."""

from __future__ import annotations

import json
import os
import sys
import time


def _note(what: str, **facts: object) -> None:
    line = json.dumps({"what": what, "at_s": time.time(), **facts}) + "\n"
    with open(os.environ["FEDGE_ROUND_TRACE"], "a", encoding="utf-8") as file:  # noqa: PTH123 -- loads nothing
        file.write(line)


def _watch_server() -> None:
    from flwr.superlink.grid.http_grid import HttpGrid

    push, pull = HttpGrid.push_messages, HttpGrid.pull_messages

    def watched_push(self, messages):
        messages, begun_s = list(messages), time.time()
        ids = list(push(self, messages))
        if messages:
            _note("pushed", begun_s=begun_s, ids=ids, kind=messages[0].metadata.message_type)
        return ids

    def watched_pull(self, message_ids):
        replies = list(pull(self, message_ids))
        if replies:
            _note("pulled", ids=[reply.metadata.reply_to_message_id for reply in replies])
        return replies

    HttpGrid.push_messages, HttpGrid.pull_messages = watched_push, watched_pull


if "FEDGE_ROUND_TRACE" in os.environ and "flwr-serverapp" in " ".join(sys.orig_argv[:3]):
    _watch_server()
