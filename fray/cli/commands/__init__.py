"""The commands of `fray`: one module each, named after its command, with a click command `command`."""
