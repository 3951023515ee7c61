"""`python -m hpxfer`."""

from hpxfer.cli import main

main()
