"""Speed and memory of the federation, measured side by side with what else one could run. See `scripts/bench`."""
