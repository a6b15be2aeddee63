"""A job's workspace: which files of a folder go along, the archive that holds them, and its place in the storage.

To read: `projects` (which folder), `selection` (which of its files), `archive` (their bytes), `stat_cache` (what need
not be packed again), `upload` (once for each content), `choice` (what a request asks for).
"""
