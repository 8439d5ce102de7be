"""Turns a network that is being trained into a MindIR graph, and leaves no trace in the network."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import mindspore
from mindspore import Tensor, nn

from mindeval.formats.errors import MindEvalError

_CACHE_VARIABLE = "MS_COMPILER_CACHE_ENABLE"
_ADVICE = (
    "The network must take int32 token ids [batch, length] and return logits [batch, length, vocab_size], for any "
    "batch and length. If it computes its own loss, give the part that returns logits: ExportGraph(network=...). If it "
    "only compiles for one shape, give ExportGraph(inputs=(Tensor,))"
)


class _FirstOutput(nn.Cell):  # type: ignore[misc]
    """Calls a network and keeps the first item of what it returns."""

    def __init__(self, network: nn.Cell) -> None:
        # With a prefix, naming the child would rename the parameters that are being trained.
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, ids: Tensor) -> Tensor:
        outputs = self.network(ids)
        if isinstance(outputs, (tuple, list)):
            return outputs[0]
        return outputs


class _Captured(Exception):  # noqa: N818 - a way out, not an error
    """Ends an export as soon as the graph is known."""


def export_graph(network: nn.Cell, inputs: tuple[Any, ...] | None) -> bytes:
    """Compiles the network in evaluation mode and serializes its graph.

    The graph holds no weights: they travel in the checkpoint, under the same names.

    Args:
        network: int32 ids [batch, length] to logits, or to a tuple that begins with them.
        inputs: Example inputs; None for free batch and length.

    Returns:
        A MindIR file.

    Raises:
        MindEvalError: MODEL_INVALID when MindSpore cannot export it, or the graph uses parameters from elsewhere.
    """
    graph: list[Any] = []

    def capture(model: Any) -> None:
        graph.append(model)
        raise _Captured

    examples = (Tensor(shape=[None, None], dtype=mindspore.int32),) if inputs is None else inputs
    with _as_found(network), _syntax_level_kept(), _random_state_kept(), _compile_cache_off():
        network.set_train(False)
        try:
            # `custom_func` is called before any weight is written: nothing of the size of the model touches the disk.
            mindspore.export(
                _FirstOutput(network), *examples, file_name="model", file_format="MINDIR", custom_func=capture
            )
        except _Captured:
            pass
        except Exception as error:
            first_line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise MindEvalError(
                "MODEL_INVALID", f"the network cannot be exported as MindIR: {first_line.strip()}. {_ADVICE}"
            ) from error
    (model,) = graph
    own = {parameter.name for parameter in network.get_parameters()}
    for entry in model.graph.parameter:
        name = entry.name.partition(":")[2] or entry.name
        if name not in own:
            raise MindEvalError(
                "MODEL_INVALID",
                f"the exported graph uses the parameter {name}, which is not one of the network's own. {_ADVICE}",
                {"tensor": name},
            )
        entry.ClearField("raw_data")
    return bytes(model.SerializeToString())


@contextlib.contextmanager
def _as_found(network: nn.Cell) -> Iterator[None]:
    """Puts every cell's mode back: a tree may mix training and frozen cells, which set_train() cannot express."""
    before = [(cell, cell.training, getattr(cell, "_phase", None)) for _, cell in network.cells_and_names()]
    try:
        yield
    finally:
        for cell, training, phase in before:
            cell.add_flags(training=training)
            if phase is not None:
                cell._phase = phase


@contextlib.contextmanager
def _syntax_level_kept() -> Iterator[None]:
    """`mindspore.export` raises this level and, when it fails, leaves it raised."""
    level = mindspore.get_context("jit_syntax_level")
    try:
        yield
    finally:
        mindspore.set_context(jit_syntax_level=level)


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    state = mindspore.get_rng_state()
    try:
        yield
    finally:
        mindspore.set_rng_state(state)


@contextlib.contextmanager
def _compile_cache_off() -> Iterator[None]:
    """Keeps the export out of MindSpore's compile cache.

    The cache counts compilations and does not look at the network: an additional one would be given the graph of the
    training step, and the training step that of whatever came after it in the run before.
    """
    variable = os.environ.get(_CACHE_VARIABLE)
    switched_on = bool(mindspore.get_context("enable_compile_cache"))
    if variable is not None:
        os.environ[_CACHE_VARIABLE] = "0"
    if switched_on:
        mindspore.set_context(enable_compile_cache=False)
    try:
        yield
    finally:
        if variable is not None:
            os.environ[_CACHE_VARIABLE] = variable
        if switched_on:
            mindspore.set_context(enable_compile_cache=True)
