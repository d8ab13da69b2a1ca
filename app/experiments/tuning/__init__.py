"""Settings of every row of a comparison, chosen with the same budget on data that are neither tested on nor audited."""
