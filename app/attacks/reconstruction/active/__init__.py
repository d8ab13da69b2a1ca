"""Reconstruction by a malicious server, which sends manipulated models."""
