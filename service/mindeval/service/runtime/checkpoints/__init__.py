"""Checkpoints as a runner sees them: a manifest, and blobs whose digests are verified before their first use."""
