"""Callbacks: one defense or observer per file."""
