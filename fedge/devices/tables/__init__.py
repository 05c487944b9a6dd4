"""Measured power-mode tables: reading them and calibrating the physical model to them."""
