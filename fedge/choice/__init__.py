"""Choosing a power mode from predictions: by an objective within a limit, and with the choice measured."""
