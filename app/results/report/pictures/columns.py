"""Columns of the table that pictures draw, and what they are in words."""

from __future__ import annotations

UTILITY = {
    "clients_accuracy": "accuracy of the clients' models (%)",
    "everyone_accuracy": "accuracy of all clients, own test sets (%)",
    "clients_own": "accuracy of trained clients, own test sets (%)",
    "server_accuracy": "accuracy of the server's model (%)",
}
"""How useful a row is, the most wanted first: what clients get out of it."""

AUC = {"uploads": "uploads_auc", "global": "global_auc"}
"""Leakage by what is attacked."""

SECONDS_RATIO = "seconds_ratio"
MEGABYTES = ("megabytes_up", "megabytes_down")
