"""Attacks: they use an adversary's view of the transcript and public knowledge, never the trainer."""
