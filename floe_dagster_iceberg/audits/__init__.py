"""Audited assets: rows are written to a branch, checked there, and published in one commit, or not at all."""
