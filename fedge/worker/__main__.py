"""``python -m fedge.worker --socket PATH``: the resident trainer of a board, with its supervisor."""

import sys

from fedge.worker import supervisor

if __name__ == "__main__":
    sys.exit(supervisor.main(supervisor.parse_arguments(sys.argv[1:])))
