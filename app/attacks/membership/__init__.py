"""Membership inference attacks, one file per attack."""
