"""Checkpoints by reference: a URI on shared storage is read and hashed into blobs before anything is evaluated."""
