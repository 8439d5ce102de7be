"""What travels beside the weights, so that the service can build the network that they belong to."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from mindeval.formats.errors import MindEvalError
from mindeval.formats.model import CONFIG_FILE, DESCRIPTION_FILE, GRAPH_FILE, TOKENIZER_FILE, GraphDescription


@dataclass(frozen=True)
class ModelFiles:
    """A folder with a Hugging Face `config.json`, for architectures that the service builds from its own cells.

    Attributes:
        folder: Holds `config.json` and, for text datasets, `tokenizer.json`.
        rename: Turns a parameter's name in the network into its name in the Hugging Face checkpoint; None from it
            leaves the parameter out. Unset when the names agree.
    """

    folder: str | Path
    rename: Callable[[str], str | None] | None = None

    def pushed_network(self, trained: Any) -> Any:
        """The network whose parameters are pushed: the one in training."""
        return trained

    def stage(self, trained: Any, folder: Path) -> dict[str, Path]:
        """Copies the files, so that later changes of the original do not mix with this run.

        Args:
            trained: The network in training; not looked at.
            folder: Where the copies go.

        Returns:
            Local path by path in the checkpoint.

        Raises:
            MindEvalError: MODEL_INVALID when there is no config.json.
        """
        source = Path(self.folder)
        if not (source / CONFIG_FILE).is_file():
            raise MindEvalError(
                "MODEL_INVALID",
                f"{source} has no {CONFIG_FILE}; give the folder of a Hugging Face model, or model=ExportGraph(...)",
                {"file": CONFIG_FILE},
            )
        present = [name for name in (CONFIG_FILE, TOKENIZER_FILE) if (source / name).is_file()]
        return {name: Path(shutil.copyfile(source / name, folder / name)) for name in present}


@dataclass(frozen=True)
class ExportGraph:
    """Exports the network once, as a MindIR graph without weights.

    The network takes int32 token ids [batch, length] and returns logits [batch, length, vocab_size], or a tuple that
    begins with them. It is exported in evaluation mode; its own modes are put back afterwards.

    Attributes:
        vocab_size: Size of the last axis of the logits.
        max_length: Longest input in tokens.
        tokenizer: "bytes", "none" (datasets come as token ids), or the path of a tokenizer.json.
        prefix_token_id: Token put once before each document; None for none.
        network: The network to export when it is not the one that `Model` trains, such as the backbone inside a network
            that computes its own loss. Only its parameters are pushed then.
        inputs: Example inputs for a network whose graph cannot be compiled with free batch and length; None for a
            free shape [None, None]. A fixed shape then has to fit the evaluation's batches.
    """

    vocab_size: int
    max_length: int
    tokenizer: str = "none"
    prefix_token_id: int | None = None
    network: Any = None
    inputs: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        self.description()
        if self._tokenizer_path is not None and not self._tokenizer_path.is_file():
            raise MindEvalError(
                "TOKENIZER_INVALID",
                f"tokenizer: {self.tokenizer!r} is neither 'bytes' nor 'none' nor a file",
                {"field": "tokenizer"},
            )

    def description(self) -> GraphDescription:
        """The content of mindeval_model.json.

        Raises:
            FormatError: MODEL_INVALID; metadata name the field.
        """
        kind = self.tokenizer if self._tokenizer_path is None else TOKENIZER_FILE
        return GraphDescription(self.vocab_size, self.max_length, kind, self.prefix_token_id)

    def pushed_network(self, trained: Any) -> Any:
        """The network whose parameters are pushed."""
        return trained if self.network is None else self.network

    @property
    def rename(self) -> None:
        """Names in the graph are the network's own."""
        return None

    @property
    def _tokenizer_path(self) -> Path | None:
        return None if self.tokenizer in ("bytes", "none") else Path(self.tokenizer)

    def stage(self, trained: Any, folder: Path) -> dict[str, Path]:
        """Exports the graph and writes its description.

        Args:
            trained: The network in training (mindspore.nn.Cell).
            folder: Where the files go.

        Returns:
            Local path by path in the checkpoint.

        Raises:
            MindEvalError: MODEL_INVALID when MindSpore cannot export the network.
        """
        from mindeval.hooks.graph_export import export_graph  # needs MindSpore; the rest of this module does not

        files = {GRAPH_FILE: folder / GRAPH_FILE, DESCRIPTION_FILE: folder / DESCRIPTION_FILE}
        files[GRAPH_FILE].write_bytes(export_graph(self.pushed_network(trained), self.inputs))
        files[DESCRIPTION_FILE].write_bytes(self.description().to_bytes())
        if self._tokenizer_path is not None:
            files[TOKENIZER_FILE] = Path(shutil.copyfile(self._tokenizer_path, folder / TOKENIZER_FILE))
        return files
