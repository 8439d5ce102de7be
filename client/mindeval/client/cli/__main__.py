"""`python -m mindeval.client.cli`: the same as `mindeval`."""

from __future__ import annotations

import sys

from mindeval.client.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
