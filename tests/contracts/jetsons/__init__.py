"""Eight documented Jetson boards as folders of files, with a layer that answers writes as a kernel does.

``BOARDS`` names them; ``board(name)`` is the truth to compare with, ``build(name, folder)`` makes the folder, and
``kernel.KernelMachine`` is the machine that lives in it. Nothing here needs pytest or anything newer than Python 3.6.
"""

import os
from pathlib import Path
from typing import Dict, Tuple, Union

from .boards import AGX_ORIN_JP5, AGX_ORIN_JP6, AGX_XAVIER, NANO, ORIN_NANO_JP5, ORIN_NANO_JP6, TX2, XAVIER_NX
from .records import Board, Caps, nearest
from .tree import build_board, contents

_ALL: Dict[str, Board] = {
    each.name: each
    for each in (NANO, TX2, XAVIER_NX, AGX_XAVIER, AGX_ORIN_JP5, AGX_ORIN_JP6, ORIN_NANO_JP5, ORIN_NANO_JP6)
}
BOARDS: Tuple[str, ...] = tuple(_ALL)
UNLIKE: Tuple[str, ...] = ("nano", "tx2", "agx-xavier", "agx-orin-jp6")
"""One of each kind: a memory override, a cluster between another's cores, clusters that are off, the newest names."""
PLAYED: Tuple[str, ...] = BOARDS if os.environ.get("FEDGE_EVERY_BOARD") == "1" else UNLIKE
"""The boards on which the power daemon's long tests are played: the unlike ones, or all with FEDGE_EVERY_BOARD=1.

``.ci/test-vendor`` sets it, so every board is played under each of the boards' Pythons; ``make test`` does not.
"""

__all__ = ["BOARDS", "PLAYED", "UNLIKE", "Board", "Caps", "board", "build", "contents", "nearest"]


def board(name: str) -> Board:
    """The truth about a board."""
    return _ALL[name]


def build(name: str, folder: Union[str, Path]) -> Path:
    """Make the board's root as ``folder/name``, as it is after a start in its default preset; gives the root."""
    return build_board(_ALL[name], folder)
