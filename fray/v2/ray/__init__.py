"""The module path of `backend` in the second version; see `fray.backends.ray`."""
