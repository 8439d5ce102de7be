"""`python -m mindeval.service.healthcheck HOST:PORT`: exit code 0 when the service there says SERVING.

For container engines, which want a command. With a second argument, the PEM file of the authority that signed the
service's certificate, the call uses TLS.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_S = 3.0


def main(arguments: Sequence[str]) -> int:
    """Asks once.

    Returns:
        0 when it serves, 1 when it does not or cannot be reached, 2 for wrong arguments.
    """
    if not 1 <= len(arguments) <= 2:
        print("usage: python -m mindeval.service.healthcheck HOST:PORT [CA.pem]", file=sys.stderr)
        return 2
    target = arguments[0]
    if len(arguments) == 2:
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(Path(arguments[1]).read_bytes()))
    else:
        channel = grpc.insecure_channel(target)
    with channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            print(f"{target}: {error.code().name}", file=sys.stderr)
            return 1
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
