"""The allow-list: four knobs, only values of the board's own tables, never below the floor; pure functions."""

from typing import Any, List, Tuple

from fedge.powerd.config import Config
from fedge.powerd.mode_records import KnobTables, Mode, PowerdRefusal, Preset

MAX_SHOWN_VALUES = 24
"""Number of table values shown in an error text."""


def above_floor(tables: KnobTables, config: Config) -> KnobTables:
    """Return the tables without the values below the floor; a knob that ends below it keeps its highest value."""
    return tables._replace(
        cores=_drop_below(tables.cores, config.floor_cores), cpu_khz=_drop_below(tables.cpu_khz, config.floor_cpu_khz)
    )


def _drop_below(values: Tuple[int, ...], floor: int) -> Tuple[int, ...]:
    return tuple(value for value in values if value >= floor) or values[-1:]


def check_mode(mode: Mode, tables: KnobTables, config: Config) -> None:
    """Check that every knob that a mode names may be set.

    Raises:
        PowerdRefusal: Of kind not-allowed, off-table or below-floor.
    """
    allowed = above_floor(tables, config)
    for knob, value in mode.to_wire().items():
        table, got = getattr(tables, knob), f"got {knob} {value}"
        if not table:
            raise PowerdRefusal("not-allowed", f"{got}; this board has no such knob: leave {knob} out")
        if value not in table:
            raise PowerdRefusal("off-table", f"{got}; this board has {format_values(table)}: choose one of these")
        if value not in getattr(allowed, knob):
            raise PowerdRefusal("below-floor", _floor_text(got, knob, getattr(allowed, knob)))


def check_preset(preset: Preset, tables: KnobTables, config: Config) -> None:
    """Check that a stock mode may be set.

    Raises:
        PowerdRefusal: Of kind reboot-needed, or below-floor if the mode would starve the board's own services.
    """
    if preset.needs_reboot:
        raise PowerdRefusal(
            "reboot-needed",
            f"got preset {preset.name}; its GPU power-gating mask differs from the present one, which needs a reboot, "
            f"and nothing here reboots: run 'sudo nvpmodel -m {preset.id}' by hand and reboot, or choose another",
        )
    allowed = above_floor(tables, config)
    for knob in ("cores", "cpu_khz"):
        value, values = getattr(preset.mode, knob), getattr(allowed, knob)
        if value is not None and values and value < values[0]:
            raise PowerdRefusal(
                "below-floor", _floor_text(f"got preset {preset.name} with {knob} {value}", knob, values)
            )


def _floor_text(got: str, knob: str, allowed: Tuple[int, ...]) -> str:
    return (
        f"{got}; the floor that keeps the board's own services alive is {allowed[0]}: "
        f"choose at least that, or lower the floor of {knob} in the daemon's file"
    )


def find_preset(presets: List[Preset], name_or_id: Any) -> Preset:
    """Return the preset with this id or name (case-insensitive).

    Raises:
        PowerdRefusal: Of kind off-table, with the presets that exist.
    """
    wanted = str(name_or_id).strip().lower()
    for preset in presets:
        if wanted in (preset.name.lower(), str(preset.id)):
            return preset
    known = ", ".join(f"{preset.name} ({preset.id})" for preset in presets)
    text = f"got preset {wanted[:60]!r}; this board has {known or 'none'}: choose one of these"
    raise PowerdRefusal("off-table", text)


def format_values(values: Tuple[int, ...]) -> str:
    """Format table values for an error text."""
    head = ", ".join(str(value) for value in values[:MAX_SHOWN_VALUES])
    return head if len(values) <= MAX_SHOWN_VALUES else f"{head}, ... ({len(values)} values up to {values[-1]})"
