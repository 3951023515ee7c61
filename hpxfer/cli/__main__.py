"""`python -m hpxfer.cli`."""

from hpxfer.cli import main

main()
