"""The storage contract: how everything under a root is named, what records hold, and what a job's spec may say.

All other packages import it, and it imports none of them. `layouts/README.md` beside it is the contract in prose, for
clients in other languages; its schemas and test vectors are generated from here.

To read: `records`, `states`, `spec`, `object_keys`, `codec`, `bounds`.
"""
