"""Parameters of a MindSpore network as arrays, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Callable

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn

from mindeval.hooks.snapshot import Bits, ParameterSpec, safetensors_dtype

_NUMPY_DTYPE = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16",
    "I32": "int32", "U32": "uint32", "F32": "float32", "I64": "int64", "U64": "uint64", "F64": "float64",
}  # fmt: skip


class NetworkWeights:
    """The parameters of one network under the names that they have in a checkpoint.

    Args:
        network: The network itself, not the training cell around it: no optimizer state.
        rename: Name in the checkpoint by the parameter's name; None from it leaves the parameter out.

    Raises:
        MindEvalError: MODEL_UNSUPPORTED for a dtype that a checkpoint cannot hold.
    """

    def __init__(self, network: nn.Cell, rename: Callable[[str], str | None] | None = None) -> None:
        self._parameters: dict[str, Parameter] = {}
        self.specs: list[ParameterSpec] = []
        for parameter in network.get_parameters():
            name = parameter.name if rename is None else rename(parameter.name)
            if name is not None:
                self._parameters[name] = parameter
                dtype = safetensors_dtype(name, str(parameter.dtype))
                self.specs.append(ParameterSpec(name, dtype, tuple(int(size) for size in parameter.shape)))

    def arrays(self) -> Iterator[tuple[str, Any]]:
        """(name, array); on the CPU the array is the live tensor's own memory, so copy it before training goes on."""
        for name, parameter in self._parameters.items():
            yield name, parameter.asnumpy()

    def load(self, bits: Mapping[str, Bits]) -> None:
        """Puts weights into the network.

        Args:
            bits: By name, the tensor's bits as unsigned integers (see `snapshot.read_snapshot`), all of `specs`.
        """
        for spec in self.specs:
            self._parameters[spec.name].set_data(_tensor(bits[spec.name], spec.dtype))


def _tensor(bits: Bits, dtype: str) -> Tensor:
    if dtype == "BF16":
        # bfloat16 is the upper half of a float32; the way through float32 is exact.
        return Tensor((bits.astype(np.uint32) << 16).view(np.float32)).astype(mindspore.bfloat16)
    return Tensor(bits.view(_NUMPY_DTYPE[dtype]))
