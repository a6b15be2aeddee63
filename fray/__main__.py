"""`python -m fray` is `fray`."""

from fray.cli import main

main()
