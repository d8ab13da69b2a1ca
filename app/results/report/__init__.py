"""One self-contained page about a collection of runs: tables, pictures, and how to read them."""
