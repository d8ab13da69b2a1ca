"""Packed Paillier encryption on `phe` keys."""
