"""Attacks that reconstruct training images from gradients, from sums of updates, and from released models."""
