"""Boards: the catalogue of their kinds, and the devices that set power modes and measure work (emulated or real)."""
