"""Rampart: train a federation of unequal models, defend it, attack it, and see which defense holds."""
