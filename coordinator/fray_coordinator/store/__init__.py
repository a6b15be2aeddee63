"""Object stores: GCS, S3, local files and memory behind one interface, with retries that never guess.

Everything that reads or writes a root does it through `Store`, mostly as records (`records`). A backend makes one
attempt at a request and says what it knows; `Store` repeats it, and resolves lost replies by reading back.

To read: `interface`, `store`, `records`, `memory`, `local` with the `file_*` modules, `gcs` and `s3` over
`http_client`, `probe`.
"""
