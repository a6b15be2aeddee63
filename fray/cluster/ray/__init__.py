"""The module path of `tpu` that older programs import; jobs on Ray are in `fray.backends.ray`."""
