"""`python -m mindeval.service.metrics`, which `mindeval metrics` runs."""

from mindeval.service.metrics.command import main

if __name__ == "__main__":
    raise SystemExit(main())
