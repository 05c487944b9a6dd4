"""Eight documented Jetson boards as folders of files, with a layer that answers writes as a kernel does.

``BOARDS`` names them; ``board(name)`` is the truth to compare with, ``build(name, folder)`` makes the folder, and
``kernel.KernelMachine`` is the machine that lives in it. Nothing here needs pytest or anything newer than Python 3.6.
"""

from pathlib import Path
from typing import Dict, Tuple, Union

from .nano import NANO
from .orin import AGX_ORIN_JP5, AGX_ORIN_JP6, ORIN_NANO_JP5, ORIN_NANO_JP6
from .records import Board, Caps, nearest
from .tree import build_board, contents
from .tx2 import TX2
from .xavier import AGX_XAVIER, XAVIER_NX

_ALL: Dict[str, Board] = {
    each.name: each
    for each in (NANO, TX2, XAVIER_NX, AGX_XAVIER, AGX_ORIN_JP5, AGX_ORIN_JP6, ORIN_NANO_JP5, ORIN_NANO_JP6)
}
BOARDS: Tuple[str, ...] = tuple(_ALL)

__all__ = ["BOARDS", "Board", "Caps", "board", "build", "contents", "nearest"]


def board(name: str) -> Board:
    """The truth about a board."""
    return _ALL[name]


def build(name: str, folder: Union[str, Path]) -> Path:
    """Make the board's root as ``folder/name``, as it is after a start in its default preset; gives the root."""
    return build_board(_ALL[name], folder)
