"""What the reviews of a shop are about.

In this folder, `fray run --root ROOT -- python -m reviews --top 3` runs it on any agent of a cluster: the job gets a
copy of the project, and the agent installs `requirements.txt`. On Ray, run agents as jobs there (docs/backends.md).
"""
