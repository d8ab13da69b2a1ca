"""How many clients are behind every coordinate of a plan, and whether secure aggregation can hide one of them."""
