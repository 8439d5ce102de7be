"""From text to token ids."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from mindeval.formats.model import TOKENIZER_FILE
from mindeval.service.runtime.checkpoints.checkpoint import Checkpoint
from mindeval.service.runtime.errors import RunnerError


class TextEncoder(Protocol):
    """Encodes texts, without special tokens.

    Attributes:
        signature: What determines the ids: a kind and, where there is a file, its digest.
    """

    signature: str

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """Token ids, int64 [tokens]."""
        ...


class ByteEncoder:
    """A token is a UTF-8 byte."""

    signature = "bytes"

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """The bytes, int64 [bytes]."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int64)


class FileEncoder:
    """A tokenizer.json, as the tokenizers library reads it."""

    def __init__(self, tokenizer: Tokenizer, digest: str) -> None:
        self._tokenizer = tokenizer
        self.signature = digest

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> FileEncoder:
        """Reads the checkpoint's tokenizer.json.

        Raises:
            RunnerError: TOKENIZER_INVALID when there is none or it cannot be read.
        """
        data = checkpoint.file(TOKENIZER_FILE)
        if data is None:
            raise RunnerError(
                "TOKENIZER_INVALID",
                f"the dataset is text and the checkpoint has no {TOKENIZER_FILE}; push it along, or use token ids",
                {"file": TOKENIZER_FILE},
            )
        try:
            tokenizer = Tokenizer.from_str(data.decode("utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise RunnerError(
                "TOKENIZER_INVALID",
                f"{TOKENIZER_FILE} cannot be read ({str(error).splitlines()[0][:200] if str(error) else error!r})",
                {"file": TOKENIZER_FILE},
            ) from None
        # A file may carry a truncation or padding of its own, which would silently drop or add tokens.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer, checkpoint.file_digest(TOKENIZER_FILE))

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """Token ids, int64 [tokens]."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)


def encoder_for(kind: str, checkpoint: Checkpoint) -> TextEncoder:
    """The encoder that a model asks for.

    Args:
        kind: "bytes", "tokenizer.json" or "none", as in `ModelSpec.tokenizer`.
        checkpoint: Where tokenizer.json is.

    Raises:
        RunnerError: TOKENIZER_INVALID.
    """
    if kind == "bytes":
        return ByteEncoder()
    if kind == "tokenizer.json":
        return FileEncoder.of(checkpoint)
    raise RunnerError(
        "TOKENIZER_INVALID",
        "the dataset is text and the model declares no tokenizer; use a dataset of token ids (tokens_npy)",
        {"field": "tokenizer"},
    )
