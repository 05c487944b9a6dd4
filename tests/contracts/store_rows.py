"""Rows for tests of the store."""

import dataclasses
from typing import Any

from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow, RoundTrace, SampleRow
from fedge.types import Trace


def round_row(number: int) -> RoundRow:
    return RoundRow(number, 0.0, 1.5, 1.5, None, "nano-1", 2, 1, 0, 1, 30.0, 20.0, None, 1.4, 33.0, 31.0, 0.5, 0.75)


def client_row(number: int, board: str = "nano-1", **more: Any) -> ClientRow:
    """Strings are their column's name, numbers the round; what may be None is."""
    hints = {field.name: str(field.type) for field in dataclasses.fields(ClientRow)}
    plain = {"str": "text", "int": number, "float": float(number), "bool": False, "Status": "done"}
    known = {name: None if "None" in hint else plain[hint] for name, hint in hints.items()}
    return ClientRow(**{**known, "round": number, "board": board, **more})


def event_row(number: int, text: str = "out of memory: <b>") -> EventRow:
    return EventRow(float(number), number, None, "failed", text)


def sample_row(at_s: float, board: str = "nano-1", round_: int = 1) -> SampleRow:
    return SampleRow(at_s, 0.1, round_, board, 5.0 + at_s, 40.0, rails_w={"VDD_IN": 5.0, "VDD_CPU": at_s})


def traced(round_: int, board: str, count: int, start_s: float = 0.0) -> RoundTrace:
    """``count`` stretches of 0.1 s; the second rail is not read in every other of them."""
    return RoundTrace(
        round_,
        board,
        Trace(
            start_s=tuple(start_s + i / 10 for i in range(count)),
            span_s=(0.1,) * count,
            power_w=tuple(5.0 + i for i in range(count)),
            temperature_c=(40.0,) * count,
            gpu_load=tuple(None if i % 3 else 0.5 for i in range(count)),
            rails_w={"VDD_IN": (5.0,) * count, "VDD_CPU": tuple(None if i % 2 else 1.5 for i in range(count))},
        ),
    )
