"""Attackers who know the defense: what they make of the models they have seen before they attack them."""
