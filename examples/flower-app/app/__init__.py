"""Digits with a small network: an ordinary Flower app."""
