"""Reconstruction from what was recorded: uploads (gradient inversion) and released models (model inversion)."""
