"""Protocols of evaluation: the sound one, and those of the papers, repeated as they were."""
