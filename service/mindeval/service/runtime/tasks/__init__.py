"""Tasks: a dataset scored in one way, into a metric state."""
