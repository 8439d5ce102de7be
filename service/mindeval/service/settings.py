"""Settings of the service: one frozen object, read once at start.

Precedence: command line, environment (MINDEVAL_DATA_DIR, MINDEVAL_LISTEN, ...), TOML file, default. The keys of the
file are the field names below.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import shlex
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mindeval.formats.errors import MindEvalError
from mindeval.formats.names import check_id
from mindeval.service.ingest.uris import ANY_PROJECT, parse_uri
from mindeval.service.storage.s3_store import parse_address

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVIRONMENT_PREFIX = "MINDEVAL_"
DEVICE_KINDS = ("cpu", "ascend")
LOG_LEVELS = ("debug", "info", "warning", "error")


class SettingsError(Exception):
    """Settings that cannot be used.

    Attributes:
        faults: One line for each.
    """

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@dataclass(frozen=True)
class Settings:
    """Everything that a user may choose."""

    data_dir: Path = Path("mindeval-data")
    """Folder of the database, the blobs and the runners' working directories; made when it is missing."""
    listen: str = "127.0.0.1:7860"
    """Address as HOST:PORT; port 0 takes a free one, and the address is written to DATA_DIR/endpoint."""
    devices: str = "cpu:1"
    """Runners to keep: "cpu:N" for N on the CPU, "ascend:0,1" for one on each of these NPUs."""
    tls_certificate: Path | None = None
    """PEM file with the server's certificate chain; TLS is used when this and tls_key are set."""
    tls_key: Path | None = None
    """PEM file with the private key of tls_certificate."""
    allow_insecure: bool = False
    """Permit listening beyond loopback without TLS."""
    runner_command: tuple[str, ...] = (sys.executable, "-m", "mindeval.service.runtime.worker")
    """Program that evaluates; "--fd N --device D" is appended (docs/formats.md)."""
    evaluation_timeout_s: float = 14_400.0
    """Seconds that an evaluation may run when its spec says nothing."""
    cancel_grace_s: float = 10.0
    """Seconds that a runner has to let go of a cancelled evaluation before it is ended."""
    drain_grace_s: float = 20.0
    """Seconds that running evaluations have to finish at shutdown before they are put back into the queue."""
    runner_start_timeout_s: float = 120.0
    """Seconds that a runner may take to be ready."""
    heartbeat_timeout_s: float = 30.0
    """Seconds of silence after which a runner counts as hung (it beats every 2 s)."""
    bookmark_interval_s: float = 15.0
    """Seconds without an event after which a watcher gets a bookmark."""
    upload_ttl_s: float = 86_400.0
    """Seconds after which an upload that nobody touches is dropped."""
    upload_sync_bytes: int = 64 << 20
    """Bytes after which a running upload is flushed to disk, and so can be resumed from there."""
    max_blob_bytes: int = 1 << 40
    """Size of the largest blob that is accepted."""
    min_free_bytes: int = 256 << 20
    """Bytes of disk that uploads must leave free."""
    blob_store: str = "folder"
    """Where blobs lie: "folder" for the data directory, "s3://BUCKET/PREFIX" for S3 or what speaks its protocol (OBS,
    MinIO; needs mindeval[s3]). Keys come from where boto3 finds them: AWS_ACCESS_KEY_ID and the like, or a role."""
    blob_cache_bytes: int = 64 << 30
    """Bytes that local copies of blobs in an object store may take; what a running evaluation needs is not counted."""
    project_budget_bytes: int = 0
    """Bytes that the blobs of a project may take; what nothing needs is collected beyond them. 0 for no limit."""
    blob_grace_s: float = 3600.0
    """Seconds for which a blob stays that a client was told about or something has used, whatever the budget says."""
    storage_roots: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """URIs (file:///..., s3://bucket/...) below which checkpoints may be named, by project; "*" stands for every one.
    Nothing is allowed by default."""
    s3_endpoint_url: str = ""
    """Address of an S3-compatible object store, such as "https://obs.cn-north-4.myhuaweicloud.com"; "" for Amazon's."""
    log_level: str = "info"
    """Least severe records that are logged: debug, info, warning or error."""

    @property
    def host(self) -> str:
        """Host part of `listen`, without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls_certificate is not None and self.tls_key is not None

    def device_names(self) -> tuple[str, ...]:
        """Names of the devices, such as ("cpu:0", "cpu:1")."""
        return parse_devices(self.devices)


def parse_devices(text: str) -> tuple[str, ...]:
    """Reads "cpu:N" or "ascend:0,1".

    Raises:
        ValueError: With the rule that is broken.
    """
    kind, separator, rest = text.partition(":")
    numbers = rest.split(",")
    if kind not in DEVICE_KINDS or not separator or not all(n.isascii() and n.isdigit() for n in numbers):
        raise ValueError(f"{text!r} is neither 'cpu:N' (N runners) nor 'ascend:0,1' (these NPUs)")
    if kind == "cpu":
        if len(numbers) != 1 or not 1 <= int(numbers[0]) <= 256:
            raise ValueError(f"{text!r}: the number of CPU runners must be 1 to 256")
        return tuple(f"cpu:{i}" for i in range(int(numbers[0])))
    names = tuple(f"ascend:{int(n)}" for n in numbers)
    if len(set(names)) != len(names):
        raise ValueError(f"{text!r} names a device twice")
    return names


def load(command_line: Mapping[str, Any], environment: Mapping[str, str], config_file: Path | None = None) -> Settings:
    """Reads and checks the settings.

    Args:
        command_line: Values by field name; only those that were given.
        environment: The process environment; only the variables of known fields are looked at.
        config_file: TOML file.

    Raises:
        SettingsError: With one line for each fault.
    """
    faults: list[str] = []
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    types = typing.get_type_hints(Settings)
    raw: dict[str, tuple[str, Any]] = {}
    for key, value in _read_file(config_file, faults).items():
        if key in fields:
            raw[key] = (f"{config_file}: {key}", value)
        else:
            faults.append(f"{config_file}: {key}: unknown key; known are {', '.join(fields)}")
    for key in fields:
        variable = ENVIRONMENT_PREFIX + key.upper()
        if variable in environment:
            raw[key] = (variable, environment[variable])
    for key, value in command_line.items():
        raw[key] = (f"--{key.replace('_', '-')}", value)
    values: dict[str, Any] = {}
    for key, (source, value) in raw.items():
        try:
            values[key] = _CONVERTERS[types[key]](value)
        except (TypeError, ValueError) as error:
            faults.append(f"{source}: {error}")
    if not faults:
        settings = Settings(**values)
        faults = _check(settings)
    if faults:
        raise SettingsError(faults)
    return settings


def _read_file(path: Path | None, faults: list[str]) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        return values
    except OSError as error:
        faults.append(f"{path}: cannot be read: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        faults.append(f"{path}: not TOML: {error}")
    return {}


def _check(settings: Settings) -> list[str]:
    faults = []
    host, separator, port = settings.listen.rpartition(":")
    if not separator or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        faults.append(f"listen: {settings.listen!r} is not HOST:PORT")
    try:
        settings.device_names()
    except ValueError as error:
        faults.append(f"devices: {error}")
    if settings.blob_store != "folder":
        try:
            parse_address(settings.blob_store)
        except ValueError as error:
            faults.append(f"blob_store: neither 'folder' nor an object store: {error}")
    data_dir = str(settings.data_dir.resolve())
    for root in {uri for uris in settings.storage_roots.values() for uri in uris}:
        place = parse_uri(root)
        path = os.path.realpath(place.path)
        if place.scheme == "file" and os.path.commonpath([path, data_dir]) in (path, data_dir):
            faults.append(f"storage_roots: {root} holds, or lies in, the data directory {settings.data_dir}")
    if not settings.runner_command:
        faults.append("runner_command: must not be empty")
    if settings.log_level not in LOG_LEVELS:
        faults.append(f"log_level: {settings.log_level!r} is none of {', '.join(LOG_LEVELS)}")
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name.endswith("_s") and not 0 < value < 1e9:
            faults.append(f"{field.name}: must be more than 0 seconds, and finite")
        if field.name.endswith("_bytes") and not 0 <= value < 1 << 62:
            faults.append(f"{field.name}: must be 0 or more bytes")
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        faults.append("tls_certificate, tls_key: both or none must be set")
    for name in ("tls_certificate", "tls_key"):
        path = getattr(settings, name)
        if path is not None and not path.is_file():
            faults.append(f"{name}: {path} is not a file")
    if separator and not settings.is_loopback and not settings.uses_tls and not settings.allow_insecure:
        faults.append(
            f"listen: {settings.listen} can be reached from other machines; set tls_certificate and tls_key, "
            "or pass --allow-insecure"
        )
    return faults


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _path(value: Any) -> Path:
    if isinstance(value, Path):
        return value
    if not _text(value) or "\0" in value:
        raise ValueError(f"{value!r} is not a path")
    return Path(value).expanduser()


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{value!r} is not a number")
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"{value!r} is not a whole number")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a whole number") from None


def _truth(value: Any) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError(f"{value!r} is neither true nor false")


def _storage_roots(value: Any) -> Mapping[str, tuple[str, ...]]:
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, Mapping):
        raise TypeError(f'{value!r} is not a table such as {{"team-a" = ["file:///shared/team-a"]}}')
    roots: dict[str, tuple[str, ...]] = {}
    for project, uris in value.items():
        if not isinstance(uris, (list, tuple)):
            raise TypeError(f"{project}: {uris!r} is not a list of URIs")
        try:
            if project != ANY_PROJECT:
                check_id(project, "project")
            roots[project] = tuple(str(parse_uri(_text(uri), "root")) for uri in uris)
        except MindEvalError as error:
            raise ValueError(f"{project}: {error.message}") from None
    return MappingProxyType(roots)


def _command(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(shlex.split(value))
    if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise TypeError(f"{value!r} is neither a command line nor a list of its words")


_CONVERTERS: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    Path: _path,
    typing.Optional[Path]: _path,
    float: _number,
    int: _whole_number,
    bool: _truth,
    tuple[str, ...]: _command,
    Mapping[str, tuple[str, ...]]: _storage_roots,
}
