"""Object stores: GCS, S3, local files and memory behind one interface, with retries that never guess.

All code that reads or writes a root uses `Store`, mostly through `records`. A backend makes one attempt at a request
and reports what it knows; `Store` repeats the attempt, and resolves lost replies by reading back.

Read in this order: `interface`, `store`, `records`, `memory`, `local` with the `file_*` modules, `gcs` and `s3` with
`http_client`, `paging`, `probe`.
"""
