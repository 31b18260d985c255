"""Runs: what a job leaves in a folder, read, opened and asked."""
