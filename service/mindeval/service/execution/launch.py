"""Starts a runner that cannot outlive the service: `python -I -S launch.py PARENT_PID COMMAND...`.

The kernel kills the process when its parent dies, also when either is stopped or hung; the setting survives exec. It is
made here, in a program of its own, because code between fork and exec is not safe in a process with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Arranges for the signal, then becomes the command."""
    parent_pid, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent_pid:
        sys.exit("the service ended before its runner was started")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
