"""The folder of one run: files, labels, checkpoints, tracking; and many folders as one collection."""
