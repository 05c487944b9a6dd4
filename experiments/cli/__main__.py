"""Entry point of ``python -m experiments.cli``."""

from experiments.cli.main import main

main()
