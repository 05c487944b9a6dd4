"""Explorers: which power mode to try next; pure."""
