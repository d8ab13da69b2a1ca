"""One self-contained page about a collection of runs: tables, figures, and how to read them."""
