"""Times in logs: seconds since 1970, or dates with a time of day; dates without a zone count as UTC."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

EARLIEST_S = 1e8
"""Numbers from here on (1973) are seconds since 1970; smaller ones are seconds since the first line of a log. A
default: no log lasts three years, and none was written before 1973.
"""
TIME_FORMATS = "seconds since 1970, YYYY-MM-DD HH:MM:SS or MM-DD-YYYY HH:MM:SS"
_DAY = r"(?:(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)|(?P<m2>\d\d)-(?P<d2>\d\d)-(?P<y2>\d{4}))"
_DATE = re.compile(rf"{_DAY}[ T](?P<clock>\d\d:\d\d:\d\d)(?P<part>\.\d{{1,9}})?(?P<zone>Z|[+-]\d\d:?\d\d)?", re.ASCII)
_NUMBER = re.compile(r"\d{9,10}(?:\.\d+)?(?![\d.])", re.ASCII)


def parse_time_s(text: str) -> float | None:
    """Parse a date or a number.

    Returns:
        Seconds since 1970 for a date (UTC if it has no zone), a number as it is, or None for neither.
    """
    stripped = text.strip()
    if (found := _DATE.fullmatch(stripped)) is not None:
        return _date_to_s(found)
    try:
        value = float(stripped)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def parse_leading_time(line: str) -> tuple[float, bool] | None:
    """Parse the time at the start of a log line.

    Returns:
        The time, and whether it has whole seconds only; None if the line does not start with a time.
    """
    start = line.lstrip(" \t[")
    if (found := _DATE.match(start)) is not None:
        at_s = _date_to_s(found)
        return None if at_s is None else (at_s, found["part"] is None)
    if (plain := _NUMBER.match(start)) is not None:
        return float(plain[0]), "." not in plain[0]
    return None


def _date_to_s(found: re.Match[str]) -> float | None:
    year, month, day = (found[name] or found[f"{name}2"] for name in "ymd")
    zone = (found["zone"] or "+00:00").replace("Z", "+00:00")
    try:
        at = datetime.fromisoformat(f"{year}-{month}-{day}T{found['clock']}{zone}")
    except ValueError:
        return None
    return at.timestamp() + float(f"0{found['part'] or ''}")


def format_time(at_s: float) -> str:
    """Format a time for a message: as a date, or in seconds if it is small."""
    if not EARLIEST_S <= at_s < 1e11:
        return f"{at_s:g} s"
    return datetime.fromtimestamp(at_s, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
