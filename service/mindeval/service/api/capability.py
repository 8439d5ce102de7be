"""CapabilityService."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import grpc.aio

from mindeval.formats import digest
from mindeval.service.api.blob import MAX_CHUNK_BYTES
from mindeval.service.build import evaluator_build
from mindeval.service.execution.executor import Executor
from mindeval.service.metrics import metric_names
from mindeval.service.runtime.task_settings import TASK_TYPES
from mindeval.v1 import capability_pb2 as pb
from mindeval.v1 import capability_pb2_grpc


class CapabilityApi(capability_pb2_grpc.CapabilityServiceServicer):
    """See capability.proto."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def GetCapabilities(  # noqa: N802 - named by the proto
        self, request: pb.GetCapabilitiesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetCapabilitiesResponse:
        """Reads the capabilities."""
        return pb.GetCapabilitiesResponse(
            version=version("mindeval"),
            evaluator_build=evaluator_build(),
            digest_algorithms=[digest.ALGORITHM],
            max_chunk_bytes=MAX_CHUNK_BYTES,
            task_types=[pb.TaskType(name=name, metrics=metric_names(family)) for name, family in TASK_TYPES.items()],
            devices=[
                pb.Device(name=device.name, state=f"DEVICE_STATE_{device.state.name}")
                for device in self._executor.devices()
            ],
        )
