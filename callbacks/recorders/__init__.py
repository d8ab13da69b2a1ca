"""Recorders: what a run writes, and the progress bar."""
