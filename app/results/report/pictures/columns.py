"""Columns of the table that pictures draw, the most wanted first."""

UTILITY = ("clients_accuracy", "server_accuracy")
UPLOADS_AUC = ("uploads_auc",)
GLOBAL_AUC = ("global_auc",)
