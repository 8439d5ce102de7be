"""Running jobs on devices: the `Executor` interface, and `LocalExecutor` with one runner process a device."""
