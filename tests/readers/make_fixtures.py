"""Writes checkpoints, strategies and merges with MindSpore itself. Run as a program: make_fixtures.py FOLDER."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.parallel import transform_safetensors
from mindspore.train import node_strategy_pb2, serialization
from mindspore.train._utils import get_parameter_redundancy, remove_param_redundancy

ROOT = Path(sys.argv[1])
RANDOM = np.random.default_rng(7)
ST_NAMES = {"Float32": "F32", "Float16": "F16", "BFloat16": "BF16", "Float64": "F64", "Bool": "BOOL"}

# name: (device matrix, tensor map, optimizer shard step, optimizer shard size, full shape)
LAYOUTS = {
    "whole": ([8], [-1, -1], 0, 0, (6, 5)),
    "rows.of2": ([4, 2], [0, -1], 0, 0, (8, 3)),
    "rows.of4": ([4, 2], [1, -1], 0, 0, (8, 3)),
    "columns": ([4, 2], [-1, 0], 0, 0, (7, 6)),
    "both": ([2, 4], [1, 0], 0, 0, (4, 8)),
    "crossed": ([2, 4], [0, 1], 0, 0, (8, 4)),
    "outer.inner": ([2, 2, 2], [2, -1, 0], 0, 0, (4, 3, 6)),
    "middle": ([4, 2], [-1, 0, -1], 0, 0, (3, 4, 5)),
    "all.axes": ([2, 2, 2], [2, 1, 0], 0, 0, (4, 6, 2)),
    "all.axes.turned": ([2, 2, 2], [0, 2, 1], 0, 0, (4, 6, 2)),
    "bias": ([4, 2], [0], 0, 0, (10,)),
    "nested": ([2, 2, 2], [[2, 0], [-1]], 0, 0, (8, 3)),
    "nested.turned": ([2, 2, 2], [[0, 2], [1]], 0, 0, (8, 6)),
    "optimizer.all": ([8], [-1, -1], 1, -1, (16, 3)),
    "optimizer.of8": ([8], [-1, -1], 1, 8, (16, 3)),
    "optimizer.of2": ([8], [-1, -1], 1, 2, (16, 3)),
    "optimizer.rows": ([4, 2], [0, -1], 2, 4, (16, 3)),
    "optimizer.rows.of2": ([4, 2], [0, -1], 2, 2, (16, 3)),
    "optimizer.columns": ([4, 2], [-1, 0], 2, -1, (8, 4)),
    "optimizer.between": ([2, 2, 2], [1, -1], 1, 4, (16, 3)),
    "optimizer.between.of2": ([2, 2, 2], [1, -1], 1, 2, (16, 3)),
    "optimizer.last": ([2, 4], [1, -1], 1, 4, (16, 3)),
    "optimizer.bias": ([4, 2], [-1], 1, -1, (16,)),
}
DTYPES = [ms.float32, ms.float16, ms.bfloat16, ms.int8]


def main() -> None:
    os.chdir(ROOT)
    transform_safetensors.psutil.virtual_memory = lambda: type("Memory", (), {"percent": 0})()
    single_files()
    training_networks()
    model_checkpoint()
    slices()
    pipeline()


def describe(tensor: Tensor) -> list[object]:
    kind = str(tensor.dtype)
    name = ST_NAMES.get(kind) or kind.replace("UInt", "U").replace("Int", "I")
    return [name, list(tensor.shape), hashlib.sha256(bytes(tensor.get_bytes())).hexdigest()]


def random_tensor(shape: tuple[int, ...], dtype: object) -> Tensor:
    return Tensor(RANDOM.integers(-100, 100, shape).astype(np.float32)).astype(dtype)


def single_files() -> None:
    weights = {
        "dense.weight": Tensor(RANDOM.standard_normal((3, 4)), ms.float32),
        "dense.half": Tensor(RANDOM.standard_normal((2, 3, 5)), ms.float16),
        "dense.brain": Tensor(RANDOM.standard_normal((33,)), ms.bfloat16),
        "dense.double": Tensor(RANDOM.standard_normal((2, 2)), ms.float64),
        "scalar": Tensor(2.5, ms.float32),
        "flags": Tensor([True, False, True]),
        "层.权重": Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "big": Tensor(RANDOM.standard_normal((96, 128)), ms.float32),
    }
    for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        weights["integers." + kind] = Tensor(np.arange(5).astype(kind))
    listed = [{"name": name, "data": value} for name, value in weights.items()]
    numbers = {"epoch_num": 3, "step_num": 77, "loss_scale": 1024.0, "lr": 0.5, "flag": True}
    ms.save_checkpoint(listed, "plain.ckpt")
    ms.save_checkpoint(listed, "crc.ckpt", crc_check=True)
    ms.save_checkpoint(listed, "appended.ckpt", append_dict={**numbers, "note": "grüße"})
    ms.save_checkpoint(listed, "encrypted.ckpt", enc_key=b"0123456789abcdef")
    ms.save_checkpoint(listed, "plain.safetensors", format="safetensors")
    ms.save_checkpoint(listed, "appended.safetensors", append_dict=numbers, format="safetensors")
    serialization.SLICE_SIZE = 16  # KiB, in place of 512 MiB
    ms.save_checkpoint(listed, "split.ckpt", crc_check=True)
    wide = [*listed, {"name": "wide", "data": Tensor(RANDOM.standard_normal((1, 9000)), ms.float32)}]
    ms.save_checkpoint(wide, "split_async.ckpt", async_save=True)
    while ms.async_ckpt_thread_status():
        pass
    serialization.SLICE_SIZE = 512 * 1024
    expected = {name: describe(value) for name, value in ms.load_checkpoint("plain.ckpt").items()}
    wide_expected = {name: describe(value) for name, value in ms.load_checkpoint("split_async.ckpt").items()}
    Path("expected.json").write_text(json.dumps({"weights": expected, "wide": wide_expected, "numbers": numbers}))


def training_networks() -> None:
    """The names in the training network of each optimizer, and those of the model among them."""
    names = {}
    optimizers = {
        "Adam": nn.Adam, "AdamWeightDecay": nn.AdamWeightDecay, "AdaFactor": nn.AdaFactor, "Adagrad": nn.Adagrad,
        "Adadelta": nn.Adadelta, "AdaMax": nn.AdaMax, "ASGD": nn.ASGD, "FTRL": nn.FTRL, "Lamb": nn.Lamb,
        "LazyAdam": nn.LazyAdam, "Momentum": nn.Momentum, "ProximalAdagrad": nn.ProximalAdagrad,
        "RMSProp": nn.RMSProp, "Rprop": nn.Rprop, "SGD": nn.SGD,
    }  # fmt: skip
    special = {
        "Momentum": {"learning_rate": 0.1, "momentum": 0.9},
        "SGD": {"learning_rate": 0.1, "momentum": 0.9},
        "Lamb": {"learning_rate": 0.1},
        "Adam": {"use_amsgrad": True},
        "RMSProp": {"centered": True},
    }
    for title, build in optimizers.items():
        net = nn.SequentialCell(nn.Dense(4, 4), nn.LayerNorm((4,)), nn.Dense(4, 2))
        weights = [p.name for p in net.get_parameters()]
        optimizer = build(net.trainable_params(), **special.get(title, {}))
        scaled = nn.TrainOneStepWithLossScaleCell(
            nn.WithLossCell(net, nn.MSELoss()), optimizer, Tensor(1024.0, ms.float32)
        )
        names[title] = {"weights": weights, "all": [p.name for p in scaled.get_parameters()]}
    Path("networks.json").write_text(json.dumps(names))


def model_checkpoint() -> None:
    """A folder that ModelCheckpoint writes."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = nn.Dense(3, 1)
    pairs = [(np.ones(3, np.float32), np.zeros(1, np.float32))] * 4
    data = ms.dataset.GeneratorDataset(lambda: iter(pairs), ["x", "y"], shuffle=False).batch(2)
    model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    config = ms.train.CheckpointConfig(
        save_checkpoint_steps=1, keep_checkpoint_max=3, append_info=["epoch_num", "step_num"], format="safetensors"
    )
    model.train(2, data, callbacks=[ms.train.ModelCheckpoint("net", "run", config)], dataset_sink_mode=False)


def add_layout(message: node_strategy_pb2.ParallelStrategyMap, name: str, layout: tuple) -> None:
    matrix, tensor_map, step, size, _ = layout
    item = message.parallel_layout_item.add()
    item.param_name = name
    layouts = item.parallel_layouts
    layouts.dev_matrix.add().dim.extend(matrix)
    if any(isinstance(axis, list) for axis in tensor_map):
        for axis in tensor_map:
            layouts.tensor_map.add().dim.extend(axis)
    else:
        layouts.tensor_map.add().dim.extend(tensor_map)
    layouts.param_split_shape.add()
    layouts.indices_offset.add()
    layouts.field, layouts.opt_weight_shard_step, layouts.opt_weight_shard_size = 0, step, size


def write_strategy(path: str, layouts: dict[str, tuple], stage: int) -> None:
    message = node_strategy_pb2.ParallelStrategyMap()
    message.current_stage = 1
    for operator in range(3):
        item = message.parallel_strategy_item.add()
        item.node_name = f"Default/MatMul-op{operator}"
        item.parallel_strategys.stage = stage
        item.parallel_strategys.parallel_strategy.add().dim.extend([2, 4])
    for name, layout in layouts.items():
        add_layout(message, name, layout)
    Path(path).write_bytes(message.SerializeToString())


def slices() -> None:
    """A full checkpoint, cut by MindSpore for each rank, and merged by it again."""
    write_strategy("strategy.ckpt", LAYOUTS, 0)
    full = {
        name: Parameter(random_tensor(layout[4], DTYPES[index % len(DTYPES)]), name=name)
        for index, (name, layout) in enumerate(LAYOUTS.items())
    }
    Path("full").mkdir()
    ms.save_checkpoint(full, "full/full.safetensors", format="safetensors")
    for rank in range(8):
        ms.load_distributed_checkpoint(
            None, None, "strategy.ckpt", format="safetensors", unified_safetensors_dir="full",
            dst_safetensors_dir="ranks", rank_id=rank,
        )  # fmt: skip
        add_state(Path(f"ranks/rank_{rank}/net.safetensors"), Path(f"ranks_ckpt/rank_{rank}/net.ckpt"))
    ms.parallel.unified_safetensors("ranks", "strategy.ckpt", "merged")
    merge_ckpt()
    drop_redundancy()


def add_state(source: Path, copy: Path) -> None:
    """Adds what no strategy names to a rank's file, and writes a .ckpt of the same."""
    parameters = ms.load_checkpoint(str(source), format="safetensors")
    parameters["global_step"] = Parameter(Tensor([12], ms.int32), name="global_step")
    parameters["table"] = Parameter(Tensor(np.arange(4), ms.float32), name="table")
    parameters["adam_m.whole"] = Parameter(Tensor(np.ones((6, 5)), ms.float32), name="adam_m.whole")
    ms.save_checkpoint(parameters, str(source), format="safetensors")
    copy.parent.mkdir(parents=True)
    ms.save_checkpoint(parameters, str(copy))


def merge_ckpt() -> None:
    """The merges of MindSpore's .ckpt functions, of the parameters that each of them can do."""
    ranks = [ms.load_checkpoint(f"ranks_ckpt/rank_{rank}/net.ckpt") for rank in range(8)]
    layouts = ms.build_searched_strategy("strategy.ckpt")
    merged = {}
    for name in LAYOUTS:
        if not name.startswith(("optimizer", "nested")) and str(ranks[0][name].dtype) != "BFloat16":
            merged[name] = ms.merge_sliced_parameter([rank[name] for rank in ranks], {name: layouts[name]})
    ms.save_checkpoint(merged, "merged_sliced.safetensors", format="safetensors")


def drop_redundancy() -> None:
    """The ranks' files as they are saved with remove_redundancy: each slice in one of them."""
    plain = {name: layout for name, layout in LAYOUTS.items() if not name.startswith("nested")}
    write_strategy("strategy_plain.ckpt", plain, 0)
    keep = remove_param_redundancy(get_parameter_redundancy("strategy_plain.ckpt", initial_rank=0))
    for rank in range(8):
        parameters = ms.load_checkpoint(f"ranks/rank_{rank}/net.safetensors", format="safetensors")
        kept = {name: value for name, value in parameters.items() if name in keep.get(rank, ())}
        Path(f"single/rank_{rank}").mkdir(parents=True)
        path = f"single/rank_{rank}/net.safetensors"
        ms.save_checkpoint(kept or {"none": Parameter(Tensor([0], ms.int8))}, path, format="safetensors",
                           remove_redundancy=True)  # fmt: skip


def pipeline() -> None:
    """Two stages of four ranks; the embedding is in both."""
    Path("stages").mkdir()
    stages = [
        {"embedding": ([4], [0, -1], 0, 0, (8, 2)), "layer0": ([2, 2], [-1, 0], 0, 0, (3, 4))},
        {"embedding": ([4], [0, -1], 0, 0, (8, 2)), "layer1": ([2, 2], [0, -1], 2, 2, (8, 4))},
    ]
    for stage, layouts in enumerate(stages):
        write_strategy(f"stages/strategy{stage}.ckpt", layouts, stage)
    ms.parallel.merge_pipeline_strategys("stages", "stages_merged.ckpt")
    shapes = {name: layout[4] for layouts in stages for name, layout in layouts.items()}
    full = {name: Parameter(random_tensor(shape, ms.float32), name=name) for name, shape in shapes.items()}
    Path("stages_full").mkdir()
    ms.save_checkpoint(full, "stages_full/full.safetensors", format="safetensors")
    for rank in range(8):
        ms.load_distributed_checkpoint(
            None, None, "stages_merged.ckpt", format="safetensors", unified_safetensors_dir="stages_full",
            dst_safetensors_dir="stages_ranks", rank_id=rank,
        )  # fmt: skip


if __name__ == "__main__":
    main()
