"""The storage contract: the keys and records under a root, and the spec of a job.

All other packages import it, and it imports none of them. `layouts/README.md` beside it is the contract in prose, for
clients in other languages; its schemas and test vectors are generated from here.

Read in this order: `records`, `states`, `spec`, `object_keys`, `codec`, `bounds`.
"""
