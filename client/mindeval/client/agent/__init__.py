"""The push agent: a process beside the trainer that pushes checkpoints and brings back results.

A process that has loaded MindSpore loads no gRPC, so the trainer starts `python -m mindeval.client.agent` by exec and
exchanges JSON lines with it over its standard input and output (docs/formats.md, "Trainer ↔ agent"). The agent keeps
trying while the service is away; nothing that happens to it or to the service reaches the training loop as an error.

    lines     reading and writing the lines
    messages  what the lines say, checked
    session   one trainer: dispatches messages, starts and ends everything
    pushes    one push from `push` to `result`
    results   what the trainer is told about the end of a push
    telemetry training metrics, buffered and sent in batches
"""
