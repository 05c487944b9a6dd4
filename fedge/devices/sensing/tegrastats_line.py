"""Parser for lines of tegrastats, as JetPack 3 to 7 print them. Pure; damaged text never raises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MIN_PLAUSIBLE_C = -60.0
"""Temperatures below this are invalid: a sensor that is switched off reports -256."""

_RAIL = re.compile(r"(?<!\S)([A-Z][A-Z0-9_]*) (\d{1,9})(?:mW)?(?:/\d{1,9}(?:mW)?){1,2}(?!\S)", re.ASCII)
"""``NAME now/mean`` in milliwatts: without a unit up to JetPack 4, with it since, and with the peak in JetPack 7.
``RAM 1/2MB`` is none."""
_MEMORY = re.compile(r"(?<!\S)(RAM|SWAP) (\d{1,9})/(\d{1,9})([kMG]?B)(?!\w)", re.ASCII)
_CORES = re.compile(r"(?<!\S)(?:CPU|cpu) \[([^\]]{0,2000})\](?:@(\d{1,6}))?", re.ASCII)
_CORE = re.compile(r"(\d{1,3})%(?:@(\d{1,6}))?", re.ASCII)
_ENGINE = r"(?<!\S){}(?:_FREQ)? (?:(\d{{1,3}}(?:\.\d+)?)%)?(?:@\[?([0-9.,off/NA ]{{1,200}})\]?)?(?!\w)"
_GPU = re.compile(_ENGINE.format("GR3D"), re.ASCII)
_MEM = re.compile(_ENGINE.format("EMC"), re.ASCII)
_TEMPERATURE = re.compile(r"(?<!\S)([A-Za-z][\w-]*)@(-?\d{1,4}(?:\.\d{1,9})?)C(?:/-?[\d.]+C)?(?!\w)", re.ASCII)
_CLOCK = re.compile(r"\d{1,6}(?:\.\d+)?", re.ASCII)
_MB = {"B": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}


@dataclass(frozen=True, slots=True)
class CoreStatus:
    """A CPU core that is on: its load from 0 to 1, and its clock in MHz if the line has it."""

    load: float
    mhz: float | None


@dataclass(frozen=True, slots=True)
class TegrastatsLine:
    """Content of one line; None or absent if the line does not have it.

    Attributes:
        cores: CPU cores; None for a core that is off.
        mem_load: Share of memory bandwidth in use, 0 to 1.
        gpu_load: GPU load, 0 to 1.
        gpu_mhz: Clock of the fastest GPU cluster, in MHz.
        rails_w: Present power by rail in watts, not tegrastats' mean.
    """

    ram_used_mb: float | None = None
    ram_total_mb: float | None = None
    swap_used_mb: float | None = None
    swap_total_mb: float | None = None
    cores: tuple[CoreStatus | None, ...] = ()
    mem_load: float | None = None
    mem_mhz: float | None = None
    gpu_load: float | None = None
    gpu_mhz: float | None = None
    temperatures_c: Mapping[str, float] = field(default_factory=dict)
    rails_w: Mapping[str, float] = field(default_factory=dict)

    @property
    def cpu_mhz(self) -> float | None:
        """Clock of the fastest core in MHz, or None."""
        return max((core.mhz for core in self.cores if core is not None and core.mhz is not None), default=None)


def parse_line(line: str) -> TegrastatsLine:
    """Parse one line; content that is missing or has an unknown format is left out."""
    memory = {name: (int(used) * _MB[unit], int(of) * _MB[unit]) for name, used, of, unit in _MEMORY.findall(line)}
    ram_used_mb, ram_total_mb = memory.get("RAM", (None, None))
    swap_used_mb, swap_total_mb = memory.get("SWAP", (None, None))
    mem_load, mem_mhz = _parse_engine(_MEM, line)
    gpu_load, gpu_mhz = _parse_engine(_GPU, line)
    return TegrastatsLine(
        ram_used_mb,
        ram_total_mb=ram_total_mb,
        swap_used_mb=swap_used_mb,
        swap_total_mb=swap_total_mb,
        cores=_parse_cores(line),
        mem_load=mem_load,
        mem_mhz=mem_mhz,
        gpu_load=gpu_load,
        gpu_mhz=gpu_mhz,
        temperatures_c={
            name: at_c for name, text in _TEMPERATURE.findall(line) if (at_c := float(text)) > MIN_PLAUSIBLE_C
        },
        rails_w={name: mw / 1e3 for name, mw in parse_rails_mw(line).items()},
    )


def parse_rails_mw(line: str) -> dict[str, float]:
    """Return the present power by rail in milliwatts; ``NC`` marks a sensor that is not connected."""
    return {name: float(now) for name, now in _RAIL.findall(line) if name != "NC"}


def _parse_cores(line: str) -> tuple[CoreStatus | None, ...]:
    """Parse cores such as ``[2%@1190,off]``; the oldest format has one clock for all, after the bracket."""
    found = _CORES.search(line)
    if found is None:
        return ()
    cores: list[CoreStatus | None] = []
    for text in found[1].split(","):
        core = _CORE.fullmatch(text.strip())
        mhz = None if core is None else core[2] or found[2]
        cores.append(None if core is None else CoreStatus(int(core[1]) / 100, None if mhz is None else float(mhz)))
    return tuple(cores)


def _parse_engine(pattern: re.Pattern[str], line: str) -> tuple[float | None, float | None]:
    """Parse load and MHz from ``37%``, ``37%@921``, ``0%@[305,305]``, ``@[1574,off]`` or ``@2133``."""
    found = pattern.search(line)
    if found is None:
        return None, None
    load, clocks = found[1], [float(mhz) for mhz in _CLOCK.findall(found[2] or "")]
    return None if load is None else float(load) / 100, max(clocks, default=None)
