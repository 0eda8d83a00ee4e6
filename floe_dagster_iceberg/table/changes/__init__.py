"""What changed between two snapshots: planned from snapshots and manifests, then read. Commits nothing."""
