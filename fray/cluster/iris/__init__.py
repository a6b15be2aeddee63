"""Jobs on Iris, for those who have its controller and no bucket.

`connection` finds the controller, `requests` translates requests, `cluster` is the interface. Iris is imported when it
is first used: the extra `iris` installs it, on Python 3.12 and newer.
"""
