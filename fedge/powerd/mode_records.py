"""Records of power modes: a mode, a board's tables, a stock preset, and a refusal."""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple


class Mode(NamedTuple):
    """A power mode. None leaves a knob unchanged, or means that the board has no such knob.

    Attributes:
        cpu_khz: Upper limit of the CPU clock in kHz.
        gpu_hz: Upper limit of the GPU clock in Hz.
        emc_hz: Rate or cap of the memory clock in Hz.
    """

    cores: Optional[int] = None
    cpu_khz: Optional[int] = None
    gpu_hz: Optional[int] = None
    emc_hz: Optional[int] = None

    def to_wire(self) -> Dict[str, int]:
        """Return the fields that are not None, for the wire."""
        return {knob: value for knob, value in self._asdict().items() if value is not None}


class KnobTables(NamedTuple):
    """The values of each knob, ascending; empty if the board has no such knob. Units as in ``Mode``."""

    cores: Tuple[int, ...] = ()
    cpu_khz: Tuple[int, ...] = ()
    gpu_hz: Tuple[int, ...] = ()
    emc_hz: Tuple[int, ...] = ()


class Preset(NamedTuple):
    """A stock mode of nvpmodel.

    Attributes:
        mode: Its caps as table values; None: uncapped, or not in the preset.
        needs_reboot: Whether its TPC, FBP or GPU power mask differs from the present one, so that it is never set from
            here.
    """

    id: int
    name: str
    mode: Mode
    needs_reboot: bool
    default: bool


class PowerdRefusal(Exception):
    """A request that was refused or failed.

    Attributes:
        kind: One of the wire's error kinds.
        got: The value read back, if that helps.
        left: What a failed change could not restore.
    """

    def __init__(self, kind: str, text: str, got: Optional[Any] = None, left: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.kind, self.text, self.got, self.left = kind, text, got, tuple(left)
