"""Secure aggregation: pairwise and own masks that cancel in the sum, with recovery of clients that drop out."""
