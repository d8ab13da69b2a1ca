"""Results of attacks on disk, as tables and as figures."""
