"""A matrix of runs: what is compared, where each run is executed, and how far it has come."""
