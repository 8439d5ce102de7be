"""What runs in a runner process: model, checkpoint, dataset, task, metric states.

This is the only place of the service that imports MindSpore, and it does so inside the modules that need it: the
package itself and `task_settings` load nothing heavy. A runner is started as
`python -m mindeval.service.runtime.worker` and speaks the frames of docs/formats.md; it never imports gRPC or protobuf.
"""
