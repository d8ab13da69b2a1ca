"""Attacks that bring training images back: from gradients, from sums of updates, and from released models."""
