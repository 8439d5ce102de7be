"""A real S3 server on this machine, for tests of what talks to an object store."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.support.service import wait_until

ENVIRONMENT: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""What a client of the server needs in its environment."""

_SERVE = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@dataclass(frozen=True)
class S3Server:
    """A running server; every bucket that is made in it is empty at first."""

    endpoint_url: str

    def make_bucket(self, name: str) -> None:
        """Makes a bucket."""
        request = urllib.request.Request(f"{self.endpoint_url}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=10):
            pass


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """moto's server in a process of its own, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **ENVIRONMENT},
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            try:
                with urllib.request.urlopen(url, timeout=1):
                    return True
            except urllib.error.HTTPError:
                return True
            except OSError:
                return False

        wait_until(answers, what="the S3 server")
        yield S3Server(url)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
