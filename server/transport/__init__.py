"""Connections to clients: in process, and over Flower."""
