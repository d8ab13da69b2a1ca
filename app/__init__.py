"""Rampart: train a federation of unequal models, defend it, attack it, and see which defense holds."""

__version__ = "0.2.0"
