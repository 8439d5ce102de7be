"""What outlives the process: the database (`Store`) and the blobs (`BlobStore`).

`records` are what a store takes and gives; `wire` writes them as messages of mindeval.v1. `Store` is the interface,
`sql` its implementation over SQLAlchemy, `access` the way in for async code. Nothing here knows of gRPC calls.
"""
