"""Formats that are not protobuf and that more than one package reads or writes (docs/formats.md).

Digests, checkpoint manifests, safetensors headers, model descriptions, resource names, the frames between the service
and its runners, and `readers`: checkpoints on disk, in every container that a training job writes. Every package may
import these modules; they need only the standard library, numpy (readers) and blake3 (digests). Nothing is imported
here: take the module you need. `deadline` is the one tool among them.
"""
