"""Attackers who know the defense, and adapt the observed models before they attack them."""
