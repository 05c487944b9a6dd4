"""Boards: what each kind is (the catalogue), and what takes a power mode and meters work (emulated or real)."""
