"""Emulated fleets: what each board is and how it plays a round, composed from catalogue, costs and seed."""
