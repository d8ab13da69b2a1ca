"""Defenses, one file each."""
