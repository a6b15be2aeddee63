"""The modules of `fray` under the paths of its first version."""
