"""Evaluation protocols: the audit, and those of the papers as they were."""
