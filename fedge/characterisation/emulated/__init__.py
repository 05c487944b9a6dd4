"""Emulated boards as rigs: epochs played by the input-pipeline model."""
