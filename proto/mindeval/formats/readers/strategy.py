"""MindSpore's strategy files: how distributed training sliced each parameter over its ranks.

`AutoParallel.save_param_strategy_file` (and `strategy_ckpt_save_file` before it) writes one file a pipeline stage;
`merge_pipeline_strategys` joins them into one whose parameter names begin with "<stage>-". As far as it matters here:

    message ParallelStrategyMap {
      required uint32 current_stage = 1;
      repeated ParallelStrategyItem parallel_strategy_item = 2;      // of operators: only their stage is read
      repeated ParallelLayoutItem parallel_layout_item = 3;
    }
    message ParallelStrategyItem { required string node_name = 1; required ParallelStrategys parallel_strategys = 2; }
    message ParallelStrategys { required uint32 stage = 1; ... }
    message ParallelLayoutItem { required string param_name = 1; required ParallelLayouts parallel_layouts = 2; }
    message ParallelLayouts {
      repeated DevMatrix dev_matrix = 1;  repeated TensorMap tensor_map = 2;
      repeated ParamSplitShape param_split_shape = 3;  repeated IndicesOffset indices_offset = 4;
      required int32 field = 5;
      required int32 opt_weight_shard_step = 6;  required int32 opt_weight_shard_size = 7;
    }                                                                // each list holds its numbers in field 1

A device matrix arranges the ranks of a stage, row-major. A tensor map names, for each axis of the tensor, the axis of
the device matrix that splits it, counted from the right, or -1. Several tensor maps in a row stand for one each an
axis: such an axis is split by several axes of the device matrix, the first of them outermost. An optimizer shard splits
the first axis of the slice once more, over the ranks that would hold equal slices.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Union

from mindeval.formats.manifest import MAX_NAME_LENGTH
from mindeval.formats.readers import wire
from mindeval.formats.readers.files import PathLike, read_small_file, truncated, unreadable
from mindeval.formats.safetensors import MAX_DIMENSIONS, MAX_TENSORS

MAX_STRATEGY_BYTES = 64 << 20
MAX_RANKS = 1 << 16
MAX_STAGES = 4_096
_MAX_MESSAGES = 1_000_000

_STAGED_NAME = re.compile(r"(\d{1,4})-(.+)\Z", re.DOTALL)

_STRATEGY_ITEM = wire.key_of(2, wire.BYTES)
_LAYOUT_ITEM = wire.key_of(3, wire.BYTES)
_NUMBERS = (wire.key_of(1, wire.VARINT), wire.key_of(1, wire.BYTES))

_Value = Union[int, "tuple[int, int]"]


@dataclass(frozen=True)
class ParameterLayout:
    """How one parameter lies over the ranks of one stage.

    Attributes:
        device_matrix: Sizes of the axes of the device matrix, such as (4, 2).
        tensor_map: For each axis of the tensor, the axes of the device matrix that split it, counted from the right and
            outermost first; () where it is whole.
        optimizer_shard_size: Over how many ranks the first axis of a slice is split once more; 1 for none, -1 for all
            that would hold equal slices.
        optimizer_shard_step: How many ranks apart the first two of these are; 0 for none.
    """

    device_matrix: tuple[int, ...]
    tensor_map: tuple[tuple[int, ...], ...]
    optimizer_shard_size: int = 1
    optimizer_shard_step: int = 0

    @property
    def devices(self) -> int:
        """How many ranks the device matrix arranges."""
        count = 1
        for size in self.device_matrix:
            count *= size
        return count

    def splits(self, axis: int) -> int:
        """Into how many slices the device matrix cuts an axis of the tensor."""
        count = 1
        for device_axis in self.tensor_map[axis]:
            count *= self.device_matrix[len(self.device_matrix) - 1 - device_axis]
        return count


@dataclass(frozen=True)
class Strategy:
    """Layouts of all parameters.

    Attributes:
        layouts: By parameter, then by pipeline stage.
        stages: How many pipeline stages there are.
        stage_devices: How many ranks a stage has; stage s has the ranks from s * stage_devices.
        path: The file, or the first of them, for messages.
    """

    layouts: Mapping[str, Mapping[int, ParameterLayout]]
    stages: int
    stage_devices: int
    path: str

    @property
    def ranks(self) -> int:
        """How many ranks the training had."""
        return self.stages * self.stage_devices


def read_strategy(paths: Iterable[PathLike]) -> Strategy:
    """Reads strategy files: one (of a training without pipeline, or merged), or those of all ranks or stages.

    Equal files of one stage count once.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE (with a tensor's name when its layout is at fault) or CHECKPOINT_TRUNCATED.
    """
    layouts: dict[str, dict[int, ParameterLayout]] = {}
    first = ""
    for path in paths:
        first = first or os.fspath(path)
        for stage, name, layout in _Parser(path).parse():
            known = layouts.setdefault(name, {})
            if known.setdefault(stage, layout) != layout:
                raise unreadable(path, f"stage {stage} has another layout of it in {first}", name)
    if not layouts:
        raise unreadable(first or "(no file)", "no strategy file says how parameters are sliced")
    stages = 1 + max(stage for known in layouts.values() for stage in known)
    present = {stage for known in layouts.values() for stage in known}
    if len(present) != stages:
        missing = next(stage for stage in range(stages) if stage not in present)
        raise unreadable(first, f"there is no strategy of pipeline stage {missing}; give the files of all stages")
    every = [(name, layout) for name, known in layouts.items() for layout in known.values()]
    stage_devices = max(layout.devices for _, layout in every)
    for name, layout in every:
        if stage_devices % layout.devices:
            raise unreadable(first, f"it lies over {layout.devices} ranks where the stage has {stage_devices}", name)
    if stages * stage_devices > MAX_RANKS:
        raise unreadable(first, f"it is for {stages * stage_devices} ranks; at most {MAX_RANKS} are read")
    return Strategy(layouts, stages, stage_devices, first)


class _Parser:
    """Reads one file."""

    def __init__(self, path: PathLike) -> None:
        self._path = path
        self._data = b""
        self._left = _MAX_MESSAGES

    def parse(self) -> list[tuple[int, str, ParameterLayout]]:
        """The stage, name and layout of each parameter."""
        self._data = read_small_file(self._path, MAX_STRATEGY_BYTES)
        if not self._data:
            raise truncated(self._path, "the file is empty")
        stages: set[int] = set()
        found: list[tuple[str, ParameterLayout]] = []
        try:
            for key, value in wire.iter_fields(self._data, 0, len(self._data)):
                if key == _STRATEGY_ITEM:
                    stages.add(self._stage(value))
                elif key == _LAYOUT_ITEM:
                    found.append(self._layout_item(value))
                self._count()
        except wire.EndOfBytesError as error:
            raise truncated(self._path, f"not a whole strategy file: {error}") from None
        except wire.WireError as error:
            raise unreadable(self._path, f"not a strategy file: {error}") from None
        return self._with_stages(stages or {0}, found)

    def _with_stages(
        self, stages: set[int], found: list[tuple[str, ParameterLayout]]
    ) -> list[tuple[int, str, ParameterLayout]]:
        if len(found) > MAX_TENSORS:
            raise unreadable(self._path, f"it names more than {MAX_TENSORS} parameters")
        if any(stage >= MAX_STAGES for stage in stages):
            raise unreadable(self._path, f"it names pipeline stage {max(stages)}; at most {MAX_STAGES} are read")
        matches = [_STAGED_NAME.match(name) for name, _ in found]
        merged = [(int(match[1]), match[2]) for match in matches if match]
        if len(merged) == len(found) and all(stage in stages for stage, _ in merged):
            names = merged
        elif len(stages) == 1:
            stage = next(iter(stages))
            names = [(stage, name) for name, _ in found]
        else:
            raise unreadable(
                self._path, "its operators are of several pipeline stages, its parameters do not say of which"
            )
        seen: set[tuple[int, str]] = set()
        for staged in names:
            if staged in seen:
                raise unreadable(self._path, "its layout stands twice", staged[1])
            seen.add(staged)
        return [(stage, name, layout) for (stage, name), (_, layout) in zip(names, found)]

    def _stage(self, value: _Value) -> int:
        for key, strategies in self._fields(value):
            if key == wire.key_of(2, wire.BYTES):
                for inner, stage in self._fields(strategies):
                    if inner == wire.key_of(1, wire.VARINT) and isinstance(stage, int):
                        return stage
        raise wire.WireError("an operator has no pipeline stage")

    def _layout_item(self, value: _Value) -> tuple[str, ParameterLayout]:
        name, layouts = "", None
        for key, inner in self._fields(value):
            if key == wire.key_of(1, wire.BYTES):
                name = self._name(inner)
            elif key == wire.key_of(2, wire.BYTES):
                layouts = inner
        if not name or layouts is None:
            raise wire.WireError("a parameter has no name or no layout")
        return name, self._layout(name, layouts)

    def _layout(self, name: str, value: _Value) -> ParameterLayout:
        lists: dict[int, list[list[int]]] = {1: [], 2: [], 3: []}
        numbers = {5: 0, 6: 0, 7: 0}
        for key, inner in self._fields(value):
            number = key >> 3
            if number in lists and len(lists[number]) <= MAX_DIMENSIONS:
                lists[number].append(self._numbers(inner))
            elif number in numbers and isinstance(inner, int):
                numbers[number] = wire.signed(inner)
        if numbers[5] or (lists[3] and lists[3][0]):
            raise unreadable(
                self._path,
                "it is sliced unevenly or by fields, which cannot be put together; merge it with MindSpore",
                name,
            )
        matrix = self._device_matrix(name, lists[1])
        tensor_map = self._tensor_map(name, lists[2], len(matrix))
        size, step = numbers[7], numbers[6]
        if not -1 <= size <= MAX_RANKS or not 0 <= step <= MAX_RANKS:
            raise unreadable(self._path, f"it has the invalid optimizer shard size {size} or step {step}", name)
        if size in (0, 1) or step == 0:
            size, step = 1, 0
        return ParameterLayout(matrix, tensor_map, size, step)

    def _device_matrix(self, name: str, lists: list[list[int]]) -> tuple[int, ...]:
        matrix = tuple(lists[0]) if len(lists) == 1 else ()
        count = 1
        for size in matrix:
            count *= size
        if not matrix or not 1 <= count <= MAX_RANKS:
            raise unreadable(self._path, f"it has no device matrix, or the invalid one {list(matrix)}", name)
        return matrix

    def _tensor_map(self, name: str, lists: list[list[int]], device_axes: int) -> tuple[tuple[int, ...], ...]:
        axes = [[axis] for axis in lists[0]] if len(lists) == 1 else [axis for axis in lists if axis]
        tensor_map = tuple(tuple(axis for axis in axes_of if axis != -1) for axes_of in axes)
        used = [axis for axes_of in tensor_map for axis in axes_of]
        is_valid = all(0 <= axis < device_axes for axis in used) and len(set(used)) == len(used)
        if not lists or not is_valid or len(tensor_map) > MAX_DIMENSIONS:
            raise unreadable(self._path, f"it has no tensor map, or the invalid one {axes}", name)
        return tensor_map

    def _numbers(self, value: _Value) -> list[int]:
        numbers: list[int] = []
        for key, inner in self._fields(value):
            if key in _NUMBERS:
                numbers.extend(wire.signed(n) for n in wire.read_numbers(self._data, key, inner, MAX_DIMENSIONS))
            if len(numbers) > MAX_DIMENSIONS:
                raise wire.WireError(f"a layout has a list of more than {MAX_DIMENSIONS} numbers")
        return numbers

    def _fields(self, value: _Value) -> Iterable[tuple[int, _Value]]:
        self._count()
        if isinstance(value, int):
            raise wire.WireError("a number stands where a message is expected")
        return wire.iter_fields(self._data, *value)

    def _name(self, value: _Value) -> str:
        if isinstance(value, int) or not 0 < value[1] - value[0] <= MAX_NAME_LENGTH * 4:
            raise wire.WireError("a parameter's name is empty, too long or no text")
        try:
            return self._data[value[0] : value[1]].decode("utf-8")
        except UnicodeDecodeError as error:
            raise wire.WireError(f"a parameter's name is not UTF-8 ({error.reason})") from None

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise wire.WireError(f"it has more than {_MAX_MESSAGES} parts")
