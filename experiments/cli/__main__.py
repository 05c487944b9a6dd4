"""Start the command line: ``python -m experiments.cli``."""

from experiments.cli.main import main

main()
