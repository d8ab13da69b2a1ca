"""A collection of runs as a table: means over seeds, rows that are significantly best, and why a number is missing."""
