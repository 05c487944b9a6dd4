"""Record when Flower's ServerApps push training messages; Python loads this where its folder is on PYTHONPATH."""

from __future__ import annotations

import json
import os
import sys
import time


def _watch_server() -> None:
    from flwr.superlink.grid.http_grid import HttpGrid

    push = HttpGrid.push_messages

    def watched_push(self, messages):
        messages, begun_s = list(messages), time.time()
        ids = list(push(self, messages))
        if messages and messages[0].metadata.message_type == "train":
            with open(os.environ["FEDGE_ROUND_TRACE"], "a", encoding="utf-8") as file:  # noqa: PTH123 -- loads nothing
                file.write(json.dumps({"begun_s": begun_s}) + "\n")
        return ids

    HttpGrid.push_messages = watched_push


if "FEDGE_ROUND_TRACE" in os.environ and "flwr-serverapp" in " ".join(sys.orig_argv[:3]):
    _watch_server()
