"""Reconstruction by a malicious server that changes what it sends."""
