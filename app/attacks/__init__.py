"""Attacks: they read what an adversary saw and what the public knows, never the trainer."""
