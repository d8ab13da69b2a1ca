"""Attacks that run inside or at the end of a run."""
