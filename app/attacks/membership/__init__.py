"""Membership inference: was this sample trained on? One file per attack."""
