"""Measured tables of step time and power by mode: reading, writing, checking and importing them."""
