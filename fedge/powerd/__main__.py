"""``python -m fedge.powerd``, or the folder itself: ``python3 -I /usr/lib/fedge-powerd/fedge/powerd``."""

import sys
from pathlib import Path

if not __package__:  # started as a folder: the path then begins with this folder, not with the one that holds fedge
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from fedge.powerd.daemon import main

if __name__ == "__main__":
    sys.exit(main())
