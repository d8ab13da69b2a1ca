"""A collection of runs as a table: means over seeds, what is best beyond chance, and why a number is missing."""
