"""The service as a whole: puts the parts together, serves, and shuts down in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from importlib.metadata import version
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mindeval.service.api.blob import BlobApi, add_blob_service
from mindeval.service.api.capability import CapabilityApi
from mindeval.service.api.checkpoint import CheckpointApi
from mindeval.service.api.evaluation import EvaluationApi
from mindeval.service.api.guard import Guard
from mindeval.service.api.registry import RegistryApi
from mindeval.service.api.run import RunApi
from mindeval.service.background import Background
from mindeval.service.data_directory import DataDirectory
from mindeval.service.drain import Drain
from mindeval.service.execution.local import LocalExecutor
from mindeval.service.execution.runner import RunnerOptions
from mindeval.service.ingest.importer import Importer
from mindeval.service.ingest.objects import ObjectReader
from mindeval.service.ingest.uris import StorageRoots
from mindeval.service.scheduling.attempt import AttemptTools
from mindeval.service.scheduling.scheduler import Scheduler
from mindeval.service.settings import Settings
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.blobs import BlobStore
from mindeval.service.storage.cache import ObjectCache
from mindeval.service.storage.collector import Collector
from mindeval.service.storage.feed import EventFeed
from mindeval.service.storage.folder_store import FolderStore
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.records import now_us
from mindeval.service.storage.s3_store import S3Store
from mindeval.service.storage.spool import Spool
from mindeval.service.storage.sql.store import SqlStore
from mindeval.service.storage.uploads import UploadLimits, Uploads
from mindeval.v1 import (
    blob_pb2,
    capability_pb2,
    capability_pb2_grpc,
    checkpoint_pb2,
    checkpoint_pb2_grpc,
    evaluation_pb2,
    evaluation_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
)

_log = logging.getLogger(__name__)

_HOUSEKEEPING_S = 3600.0
_REQUEST_ID_TTL_US = 72 * 3600 * 1_000_000
_CALL_GRACE_S = 2.0

_CHANNEL_OPTIONS = (
    # Flow control does not bound memory by default: without probing, the window is what lookahead says. 2 MiB in flight
    # a stream fill 1 GB/s at a round trip of 2 ms; over longer ways, clients send several blobs at a time.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2 << 20),
    # Buffers that a connection reads into; they come on top of its window.
    ("grpc.experimental.tcp_max_read_chunk_size", 512 << 10),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", 4 << 20),
    # Thousands of watchers may come in one burst, after a restart.
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 40_000),
    # Clients may ping as often as they like; ours find out within half a minute that a peer is gone.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Two services on one port would share its connections at random.
    ("grpc.so_reuseport", 0),
)

_SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (evaluation_pb2, "EvaluationService"),
        (checkpoint_pb2, "CheckpointService"),
        (blob_pb2, "BlobService"),
        (registry_pb2, "RegistryService"),
        (run_pb2, "RunService"),
        (capability_pb2, "CapabilityService"),
    )
)


class StartError(Exception):
    """The service cannot start; the message is one line for the user."""


class Service:
    """One running service. Made on the event loop that it runs on."""

    def __init__(self, settings: Settings, directory: DataDirectory) -> None:
        """Opens the database and prepares everything; nothing runs yet.

        Raises:
            MigrationError: When the database is of a newer release.
            StartError: When the blob store cannot be reached.
        """
        self._settings = settings
        self._directory = directory
        self._drain = Drain()
        self._feed = EventFeed(settings.bookmark_interval_s)
        self._access = StoreAccess(SqlStore(directory.database, self._feed.changed))
        self._library = BlobLibrary(self._access, _blob_store(settings, directory), settings.blob_grace_s)
        limits = UploadLimits(
            settings.upload_ttl_s, settings.upload_sync_bytes, settings.max_blob_bytes, settings.min_free_bytes
        )
        self._background = Background()
        spool = Spool(directory.uploads)
        self._collector = Collector(
            self._access,
            self._library,
            spool,
            self._background,
            settings.project_budget_bytes,
            settings.upload_ttl_s,
            settings.blob_grace_s,
        )
        self._uploads = Uploads(self._access, self._library, spool, self._background, limits, self._collector)
        self._importer = Importer(
            self._access,
            self._library,
            self._uploads,
            self._background,
            StorageRoots(settings.storage_roots),
            ObjectReader(settings.s3_endpoint_url, settings.min_free_bytes),
            directory.imports,
        )
        options = RunnerOptions(settings.runner_command, settings.runner_start_timeout_s, settings.heartbeat_timeout_s)
        self._executor = LocalExecutor(settings.device_names(), directory.runners, options, settings.cancel_grace_s)
        tools = AttemptTools(self._access, self._executor, self._library, settings.evaluation_timeout_s)
        self._scheduler = Scheduler(tools, self._background)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined,unused-ignore]
        self._server = self._make_server()
        self._housekeeper: asyncio.Task[None] | None = None
        self._checker: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Begins to serve.

        Returns:
            The address, with the port that was chosen.

        Raises:
            StartError: When the address cannot be bound or the certificate cannot be used.
        """
        await self._uploads.recover()
        endpoint = self._bind()
        await self._scheduler.start()
        await self._server.start()
        for name in ("", *_SERVICES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._directory.publish_endpoint(endpoint)
        self._housekeeper = asyncio.ensure_future(self._keep_house())
        self._checker = asyncio.ensure_future(self._check_blobs())
        return endpoint

    async def stop(self) -> None:
        """Shuts down in order: health, watchers, running work, calls, runners, stores."""
        _log.info("draining")
        await self._health.enter_graceful_shutdown()
        self._drain.begin()
        self._feed.stop()
        for task in (self._housekeeper, self._checker):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._importer.stop()
        await self._scheduler.drain(self._settings.drain_grace_s)
        await self._server.stop(_CALL_GRACE_S)
        await self._background.settle()
        await asyncio.to_thread(self._access.close)
        _log.info("stopped")

    def _make_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=[Guard(self._drain)], options=_CHANNEL_OPTIONS)
        evaluation = EvaluationApi(
            self._access, self._library, self._importer, self._feed, self._scheduler, self._background
        )
        checkpoint = CheckpointApi(self._access, self._library, self._importer, self._background)
        blob = BlobApi(self._library, self._uploads, self._drain, self._background)
        parts: tuple[tuple[Any, Any], ...] = (
            (evaluation_pb2_grpc.add_EvaluationServiceServicer_to_server, evaluation),
            (checkpoint_pb2_grpc.add_CheckpointServiceServicer_to_server, checkpoint),
            (add_blob_service, blob),
            (registry_pb2_grpc.add_RegistryServiceServicer_to_server, RegistryApi(self._access, self._library)),
            (run_pb2_grpc.add_RunServiceServicer_to_server, RunApi(self._access)),
            (capability_pb2_grpc.add_CapabilityServiceServicer_to_server, CapabilityApi(self._executor)),
            (health_pb2_grpc.add_HealthServicer_to_server, self._health),
        )
        for add_to_server, servicer in parts:
            add_to_server(servicer, server)
        names = (*_SERVICES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return server

    def _bind(self) -> str:
        settings = self._settings
        try:
            if settings.uses_tls:
                assert settings.tls_certificate is not None
                assert settings.tls_key is not None
                pair = (settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes())
                port = self._server.add_secure_port(settings.listen, grpc.ssl_server_credentials([pair]))
            else:
                port = self._server.add_insecure_port(settings.listen)
        except (RuntimeError, OSError):
            port = 0
        if port == 0:
            text = f"cannot listen on {settings.listen}: the address is in use, or not one of this machine's"
            if settings.uses_tls:
                text += ", or tls_certificate and tls_key are not PEM files that belong together"
            raise StartError(text)
        return f"{settings.listen.rpartition(':')[0]}:{port}"

    async def _check_blobs(self) -> None:
        try:
            await self._collector.check()
        except Exception:
            _log.exception("the blobs could not be checked")

    async def _keep_house(self) -> None:
        evaluations = self._access.store.evaluations
        while True:
            try:
                await self._uploads.drop_expired()
                await self._collector.run()
                await self._access.write(evaluations.forget_requests, now_us() - _REQUEST_ID_TTL_US)
            except Exception:
                _log.exception("housekeeping failed; it is tried again")
            await asyncio.sleep(_HOUSEKEEPING_S)


def _blob_store(settings: Settings, directory: DataDirectory) -> BlobStore:
    if settings.blob_store == "folder":
        return FolderStore(directory.root)
    cache = ObjectCache(directory.cache, settings.blob_cache_bytes)
    try:
        return S3Store(settings.blob_store, settings.s3_endpoint_url, cache)
    except ImportError:
        raise StartError(f"blob_store is {settings.blob_store}, and s3fs is not installed: mindeval[s3]") from None
    except Exception as error:  # Whatever the client library makes of a refused connection or missing keys.
        text = " ".join(str(error).split())[:300]
        raise StartError(f"cannot use the blob store {settings.blob_store}: {type(error).__name__}: {text}") from None


async def serve(settings: Settings) -> None:
    """Runs a service until SIGTERM or SIGINT, and then shuts it down; a second signal ends the process at once.

    Raises:
        DataDirectoryError: When the data directory cannot be used.
        MigrationError: When the database is of a newer release.
        StartError: When the address cannot be used.
    """
    directory = DataDirectory(settings.data_dir)
    directory.acquire()
    try:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _on_signal, stop, number)
        service = Service(settings, directory)
        try:
            endpoint = await service.start()
            print(
                f"MindEval {version('mindeval')} listening on {endpoint} "
                f"(devices: {', '.join(settings.device_names())}), data in {directory.root}",
                flush=True,
            )
            await stop.wait()
        finally:
            await service.stop()
    finally:
        directory.release()


def _on_signal(stop: asyncio.Event, number: signal.Signals) -> None:
    if stop.is_set():
        # Asked twice: whoever asks does not want to wait. Runners end with this process, the database is consistent.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    stop.set()
