"""`python -m mindeval.client.agent`: started by the trainer; see the package."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from mindeval.client._memory import keep_freed_memory


def main() -> None:
    """Runs the agent on standard input and output."""
    # Standard output carries the protocol; whatever prints by accident goes to the log.
    lines_out = os.dup(1)
    os.dup2(2, 1)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="mindeval agent: %(levelname)s %(message)s")
    # Ctrl-C reaches the trainer as well, which decides and then says `stop` or ends our input.
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_run(lines_out))


async def _run(lines_out: int) -> None:
    from mindeval.client.agent.lines import LineReader, LineWriter
    from mindeval.client.agent.session import Session

    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()

    def nobody_reads() -> None:
        loop.call_soon_threadsafe(interrupted.set)

    writer = LineWriter(lines_out, on_broken=nobody_reads)
    session = Session(LineReader(0, loop), writer, interrupted)
    loop.add_signal_handler(signal.SIGTERM, interrupted.set)
    await session.run()
    writer.close(timeout_s=5.0)
    # Not a return: threads that still read or hash a large file, and gRPC's own shutdown, may take their time, and
    # everything that matters is with the service or was told.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
