"""Model descriptions: what a checkpoint says about the network that its weights belong to.

A checkpoint carries one of
- `config.json`: a Hugging Face configuration, built from the service's own cells; `tokenizer.json` rides along;
- `mindeval_model.json` and a MindIR graph, which any MindSpore network can export once (docs/formats.md):

    {"mindeval_model": 1, "graph": "model.mindir", "outputs": "logits", "vocab_size": 257,
     "max_length": 128, "tokenizer": {"type": "bytes"}, "prefix_token_id": 256}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from mindeval.formats.errors import FormatError

VERSION = 1
DESCRIPTION_FILE = "mindeval_model.json"
GRAPH_FILE = "model.mindir"
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_TYPES = ("none", "bytes", "tokenizer.json")


@dataclass(frozen=True)
class GraphDescription:
    """How to call an exported graph: input int32 token ids [batch, length] → float logits [batch, length, vocab_size].

    Attributes:
        vocab_size: Size of the last axis of the logits; token ids are below it.
        max_length: Longest input that the network takes, in tokens.
        tokenizer: "bytes" (token id = UTF-8 byte), "tokenizer.json" (the file of that name in the checkpoint), or
            "none" (datasets must come as token ids).
        prefix_token_id: Token put once before each document so that its first token is scored as well; None for none.
        graph: Path of the MindIR file in the checkpoint.
        outputs: "logits": unshifted, position t predicts token t + 1.
    """

    vocab_size: int
    max_length: int
    tokenizer: str = "none"
    prefix_token_id: int | None = None
    graph: str = GRAPH_FILE
    outputs: str = "logits"

    def __post_init__(self) -> None:
        _require(_is_positive(self.vocab_size), "vocab_size", "must be a positive whole number")
        _require(_is_positive(self.max_length), "max_length", "must be a positive whole number")
        _require(
            str(self.tokenizer) in TOKENIZER_TYPES, "tokenizer.type", f"must be one of {', '.join(TOKENIZER_TYPES)}"
        )
        _require(self.outputs == "logits", "outputs", "must be 'logits'")
        _require(_is_relative_path(self.graph), "graph", "must be the MindIR file's relative path, without '..'")
        if self.prefix_token_id is not None:
            inside = _is_whole_number(self.prefix_token_id) and 0 <= self.prefix_token_id < self.vocab_size
            _require(inside, "prefix_token_id", "must be a token id below vocab_size")
        if self.tokenizer == "bytes":
            _require(self.vocab_size >= 256, "vocab_size", "must be at least 256 for the bytes tokenizer")

    def to_bytes(self) -> bytes:
        """The content of `mindeval_model.json`."""
        fields = {**asdict(self), "tokenizer": {"type": self.tokenizer}, "mindeval_model": VERSION}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("utf-8")

    @classmethod
    def from_bytes(cls, data: bytes) -> GraphDescription:
        """Reads `mindeval_model.json`.

        Raises:
            FormatError: MODEL_INVALID; metadata name the field.
        """
        try:
            raw = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise FormatError(
                "MODEL_INVALID", f"{DESCRIPTION_FILE}: not JSON ({error})", {"file": DESCRIPTION_FILE}
            ) from None
        _require(isinstance(raw, dict), "", "must be a JSON object")
        _require(raw.pop("mindeval_model", None) == VERSION, "mindeval_model", f"must be {VERSION}")
        tokenizer: Any = raw.pop("tokenizer", {"type": "none"})
        _require(isinstance(tokenizer, dict) and tokenizer.keys() == {"type"}, "tokenizer", 'must be {"type": ...}')
        known = {"vocab_size", "max_length", "prefix_token_id", "graph", "outputs"}
        _require(raw.keys() <= known, ", ".join(sorted(raw.keys() - known)), "is not a known field")
        _require({"vocab_size", "max_length"} <= raw.keys(), "vocab_size", "and max_length are required")
        return cls(tokenizer=tokenizer["type"], **raw)


def _is_whole_number(value: Any) -> bool:
    # bool is an int in Python, and true is no size in JSON.
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return _is_whole_number(value) and 0 < value < 2**31


def _is_relative_path(value: Any) -> bool:
    return isinstance(value, str) and all(part not in ("", ".", "..") for part in value.split("/"))


def _require(condition: bool, field: str, rule: str) -> None:
    if not condition:
        raise FormatError(
            "MODEL_INVALID", f"{DESCRIPTION_FILE}: {field} {rule}", {"file": DESCRIPTION_FILE, "field": field}
        )
