"""The wire API of MindEval: one module per .proto file beside this one.

Nothing is imported here on purpose: a process that has loaded MindSpore must not load generated protobuf modules by
accident (see docs/decisions/0001-processes.md).
"""
