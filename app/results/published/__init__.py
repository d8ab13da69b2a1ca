"""What papers have published, and our own results beside it."""
