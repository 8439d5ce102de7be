"""Formats that cross a process boundary and are not protobuf (docs/formats.md).

Digests, checkpoint manifests, safetensors headers, model descriptions, resource names and the frames between the
service and its runners. Every package may import these modules; they need only the standard library and, for digests,
blake3. Nothing is imported here: take the module you need.
"""
