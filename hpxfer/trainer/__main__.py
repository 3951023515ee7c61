"""The function form of a trainer: `python -m hpxfer.trainer CONFIG`, or `torchrun -m hpxfer.trainer CONFIG`."""

import sys

from hpxfer.trainer.function import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
