"""The `mindeval` command.

parser     what may be typed
commands   the short ones: suite, dataset, list, get, cancel
pushing    push
checkpoints list, show, diff, pin, unpin, delete
evaluating evaluate and watch
serving    serve
progress   bar on a terminal, plain lines elsewhere
tables     aligned text for people
documents  JSON for programs
"""

from __future__ import annotations

from mindeval.client.cli.main import main

__all__ = ["main"]
