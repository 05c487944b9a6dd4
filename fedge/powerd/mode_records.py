"""The records of power modes: a mode, a board's tables, a stock preset, the daemon's options, and a refusal."""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple


class Mode(NamedTuple):
    """The four knobs; None leaves a knob as it is, or says that the board has no such knob."""

    cores: Optional[int] = None
    cpu_khz: Optional[int] = None
    gpu_hz: Optional[int] = None
    emc_hz: Optional[int] = None

    def to_wire(self) -> Dict[str, int]:
        """The fields that are not None, as they travel."""
        return {knob: value for knob, value in self._asdict().items() if value is not None}


class KnobTables(NamedTuple):
    """The values each knob can have, ascending; empty where the board has no such knob."""

    cores: Tuple[int, ...] = ()
    cpu_khz: Tuple[int, ...] = ()
    gpu_hz: Tuple[int, ...] = ()
    emc_hz: Tuple[int, ...] = ()


class Preset(NamedTuple):
    """A stock mode of nvpmodel: its caps as table values (None: uncapped, or not in the preset).

    ``needs_reboot``: its TPC, FBP or GPU power mask differs from the present one, so it is never set from here.
    """

    id: int
    name: str
    mode: Mode
    needs_reboot: bool
    default: bool


class HardwareOptions(NamedTuple):
    """What the daemon's file decides about the hardware. The defaults are chosen by us."""

    floor_cores: int = 2
    floor_cpu_khz: int = 400000
    emc: str = "lock"  # or "cap"
    emc_table_hz: Tuple[int, ...] = ()
    hottest_c: float = 95.0
    needed_zones: Tuple[str, ...] = ()


class PowerdRefusal(Exception):
    """A request that was not, or could not be, fulfilled; ``kind`` is one of the wire's error kinds.

    ``text`` says what was got, what would be right and what to do; ``got`` is what was read back, where that tells.
    ``left`` names what a failed change could not put back.
    """

    def __init__(self, kind: str, text: str, got: Optional[Any] = None, left: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.kind, self.text, self.got, self.left = kind, text, got, tuple(left)
