"""`python -m fray` runs the command line, like `fray`."""

from fray.cli import main

main()
