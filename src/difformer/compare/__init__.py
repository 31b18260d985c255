"""Systems compared on the same splits, and searches for their settings."""
