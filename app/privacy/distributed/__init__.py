"""Differential privacy whose noise many clients share: integer noise, rotation and rounding, and what they prove."""
