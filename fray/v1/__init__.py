"""`fray` as programs of its first version import it."""
