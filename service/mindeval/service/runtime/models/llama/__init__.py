"""Llama-architecture decoders, built from a Hugging Face config.json."""
