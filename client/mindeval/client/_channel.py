"""How a gRPC channel to the service is made: address, TLS, token and options."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

import grpc

from mindeval.formats.errors import FormatError

_MIB = 1 << 20
# host:port; an IPv6 host stands in brackets.
_ENDPOINT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})\Z")

# Calls that may be repeated without harm, by service. A call that carries data of its own (CancelEvaluation with an
# etag, WriteUpload) is not among them: the code above decides about those.
_RETRIED_METHODS = {
    "EvaluationService": ("CreateEvaluation", "GetEvaluation", "ListEvaluations"),
    "BlobService": ("FindMissingBlobs", "CreateUpload", "GetUpload", "CommitUpload"),
    "CheckpointService": (
        "CreateCheckpoint",
        "GetCheckpoint",
        "ListCheckpoints",
        "PinCheckpoint",
        "DiffCheckpoints",
    ),
    "RegistryService": ("PutDataset", "GetDataset", "ListDatasets", "PutSuite", "GetSuite", "ListSuites"),
    "RunService": ("ReportTrainingMetrics", "GetRun", "ListRuns", "ListTrainingMetrics"),
    "CapabilityService": ("GetCapabilities",),
}

ChannelOptions = Sequence[tuple[str, Union[str, int]]]


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a TLS connection. `TlsFiles()` trusts the system's certificate authorities.

    Attributes:
        ca_file: Certificates of the authorities to trust, instead of the system's.
        cert_file: This client's certificate chain, for a service that asks for one.
        key_file: The private key of `cert_file`.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def read(self) -> grpc.ChannelCredentials:
        """Loads the files.

        Raises:
            FormatError: INVALID_FIELD; metadata name the file.
        """
        if (self.cert_file is None) != (self.key_file is None):
            raise FormatError("INVALID_FIELD", "tls: cert_file and key_file belong together", {"field": "tls"})
        return grpc.ssl_channel_credentials(
            root_certificates=_read_pem(self.ca_file),
            private_key=_read_pem(self.key_file),
            certificate_chain=_read_pem(self.cert_file),
        )

    def stamps(self) -> tuple[int | None, ...]:
        """Modification times of the files; they differ once a certificate was rotated."""
        return tuple(_modified_ns(path) for path in (self.ca_file, self.cert_file, self.key_file))


@dataclass(frozen=True)
class Target:
    """A service and how to speak to it.

    Attributes:
        endpoint: "host:port", or "unix:/path/to/socket".
        token: Sent with each call as a bearer token; None for none.
        tls: None for a connection without TLS.
    """

    endpoint: str
    token: str | None = None
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        local = is_local(self.endpoint)
        if self.token is not None:
            if not self.token or not self.token.isascii() or not self.token.isprintable() or " " in self.token:
                raise FormatError("INVALID_FIELD", "token: must be printable ASCII without spaces", {"field": "token"})
            if self.tls is None and not local:
                raise FormatError(
                    "INVALID_FIELD",
                    f"token: it would travel to {self.endpoint} unencrypted; give the TLS files of the service",
                    {"field": "tls"},
                )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of each call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def open(self) -> grpc.aio.Channel:
        """Makes a channel; must be called within the event loop that will use it.

        Raises:
            FormatError: INVALID_FIELD when a TLS file cannot be read.
        """
        options = channel_options(is_local(self.endpoint))
        if self.tls is None:
            return grpc.aio.insecure_channel(self.endpoint, options=options)
        return grpc.aio.secure_channel(self.endpoint, self.tls.read(), options=options)


def is_local(endpoint: str) -> bool:
    """Whether an endpoint is on this machine: a loopback address or a Unix socket.

    Raises:
        FormatError: INVALID_FIELD when it is no endpoint.
    """
    if endpoint.startswith("unix:") and len(endpoint) > len("unix:"):
        return True
    match = _ENDPOINT.match(endpoint)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise FormatError(
            "INVALID_FIELD",
            f"endpoint: {endpoint[:80]!r} is not of the form host:port, such as 127.0.0.1:7860",
            {"field": "endpoint"},
        )
    host = match["v6"] or match["host"]
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def channel_options(local: bool) -> ChannelOptions:
    """Options of a channel.

    Pings find a frozen peer within half a minute; the service permits them every 10 s, also without calls. A window of
    fixed size bounds memory where the default one grows with the bandwidth. Each channel keeps its own connection, so
    that one client's back-off is not another's.
    """
    return (
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 4 * _MIB),
        ("grpc.max_receive_message_length", 64 * _MIB),
        ("grpc.max_send_message_length", 16 * _MIB),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.max_reconnect_backoff_ms", 3_000),
        ("grpc.use_local_subchannel_pool", 1),
        # A proxy of the environment is never meant for this machine's own addresses.
        ("grpc.enable_http_proxy", 0 if local else 1),
        ("grpc.enable_retries", 1),
        ("grpc.service_config", _service_config()),
    )


def _service_config() -> str:
    names = [
        {"service": f"mindeval.v1.{service}", "method": method}
        for service, methods in _RETRIED_METHODS.items()
        for method in methods
    ]
    policy = {
        "maxAttempts": 3,
        "initialBackoff": "0.1s",
        "maxBackoff": "1s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    return json.dumps({"methodConfig": [{"name": names, "retryPolicy": policy}]})


def _read_pem(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read(_MIB)
    except OSError as error:
        raise FormatError(
            "INVALID_FIELD", f"tls: {path}: {(error.strerror or str(error)).lower()}", {"field": "tls", "file": path}
        ) from None


def _modified_ns(path: str | None) -> int | None:
    try:
        return os.stat(path).st_mtime_ns if path else None
    except OSError:
        return None
