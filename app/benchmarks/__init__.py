"""Speed and memory of the federation, measured against raw PyTorch and other frameworks. See `scripts/bench`."""
