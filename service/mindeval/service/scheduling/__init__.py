"""Which evaluation runs when: the queue, the attempts, cancellation, timeouts, recovery after a restart."""
