"""What the reviews of a shop are about.

In this folder, `fray run --root ROOT -- python -m reviews --top 3` runs it on any agent of a cluster: the project goes
along, and the agent installs what `requirements.txt` states. On Ray, run agents as jobs there (docs/backends.md).
"""
