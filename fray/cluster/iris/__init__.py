"""Jobs on Iris, for programs that have an Iris controller and no bucket.

`connection` finds the controller, `requests` translates requests, and `cluster` has `IrisCluster`. Iris is imported
when it is first used. The extra `iris` installs it, on Python 3.12 and newer.
"""
