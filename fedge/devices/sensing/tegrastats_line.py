"""Parser for lines of tegrastats, as JetPack 3 to 7 print them. Pure; damaged text never raises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_RAIL = re.compile(r"(?<!\S)([A-Z][A-Z0-9_]*) (\d{1,9})(?:mW)?(?:/\d{1,9}(?:mW)?){1,2}(?!\S)", re.ASCII)
"""``NAME now/mean`` in milliwatts: without a unit up to JetPack 4, with it since, and with the peak in JetPack 7.
``RAM 1/2MB`` is none."""
_CORES = re.compile(r"(?<!\S)(?:CPU|cpu) \[([^\]]{0,2000})\](?:@(\d{1,6}))?", re.ASCII)
_CORE = re.compile(r"\d{1,3}%(?:@(\d{1,6}))?", re.ASCII)
_ENGINE = r"(?<!\S){}(?:_FREQ)? (?:(\d{{1,3}}(?:\.\d+)?)%)?(?:@\[?([0-9.,off/NA ]{{1,200}})\]?)?(?!\w)"
_GPU = re.compile(_ENGINE.format("GR3D"), re.ASCII)
_MEM = re.compile(_ENGINE.format("EMC"), re.ASCII)
_TEMPERATURE = re.compile(r"(?<!\S)([A-Za-z][\w-]*)@(-?\d{1,4}(?:\.\d{1,9})?)C(?:/-?[\d.]+C)?(?!\w)", re.ASCII)
_CLOCK = re.compile(r"\d{1,6}(?:\.\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TegrastatsLine:
    """Content of one line; None or absent if the line does not have it.

    Attributes:
        cpu_mhz: Clock of the fastest core.
        mem_load: Share of memory bandwidth in use, 0 to 1.
        gpu_load: GPU load, 0 to 1.
        gpu_mhz: Clock of the fastest GPU cluster.
        temperatures_c: All temperatures; a sensor that is switched off reports -256.
        rails_w: Present power by rail in watts, not tegrastats' mean.
    """

    cpu_mhz: float | None
    mem_load: float | None
    mem_mhz: float | None
    gpu_load: float | None
    gpu_mhz: float | None
    temperatures_c: Mapping[str, float]
    rails_w: Mapping[str, float]


def parse_line(line: str) -> TegrastatsLine:
    """Parse one line; content that is missing or has an unknown format is left out."""
    mem_load, mem_mhz = _parse_engine(_MEM, line)
    gpu_load, gpu_mhz = _parse_engine(_GPU, line)
    return TegrastatsLine(
        cpu_mhz=_parse_cpu_mhz(line),
        mem_load=mem_load,
        mem_mhz=mem_mhz,
        gpu_load=gpu_load,
        gpu_mhz=gpu_mhz,
        temperatures_c={name: float(text) for name, text in _TEMPERATURE.findall(line)},
        rails_w={name: mw / 1e3 for name, mw in parse_rails_mw(line).items()},
    )


def parse_rails_mw(line: str) -> dict[str, float]:
    """Return the present power by rail in milliwatts; ``NC`` marks a sensor that is not connected."""
    return {name: float(now) for name, now in _RAIL.findall(line) if name != "NC"}


def _parse_cpu_mhz(line: str) -> float | None:
    """Parse the fastest of cores such as ``[2%@1190,off]``; some formats have one clock for all, after the bracket."""
    found = _CORES.search(line)
    if found is None:
        return None
    cores = [core for text in found[1].split(",") if (core := _CORE.fullmatch(text.strip()))]
    return max((float(mhz) for core in cores if (mhz := core[1] or found[2])), default=None)


def _parse_engine(pattern: re.Pattern[str], line: str) -> tuple[float | None, float | None]:
    """Parse load and MHz from ``37%``, ``37%@921``, ``0%@[305,305]``, ``@[1574,off]`` or ``@2133``."""
    found = pattern.search(line)
    if found is None:
        return None, None
    load, clocks = found[1], [float(mhz) for mhz in _CLOCK.findall(found[2] or "")]
    return None if load is None else float(load) / 100, max(clocks, default=None)
