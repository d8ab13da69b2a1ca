"""Encryption and masking of updates: pure, no Lightning, no torch."""
