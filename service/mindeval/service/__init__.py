"""The MindEval service. `python -m mindeval.service` (or `mindeval serve`) starts it; docs/operating.md says how."""
