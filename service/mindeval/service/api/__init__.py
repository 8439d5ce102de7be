"""The gRPC services of mindeval.v1: thin handlers that check, convert and delegate; `guard` aborts on errors."""
