"""Workspaces: the folders of code that jobs bring, packed into archives that are stored once per content.

Reading order: `projects` (finds the folder), `selection` (its files), `archive` (packs them, and remembers
packed folders), `upload` (stores archives), `choice` (the workspace that a request asks for).
"""
