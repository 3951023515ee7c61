"""The function form of a trainer: `python -m hpxfer.trainer CONFIG`, or `torchrun -m hpxfer.trainer CONFIG`."""

import faulthandler
import signal
import sys

from hpxfer.trainer.function import main

if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # a trial that hangs is asked where
    sys.exit(main(sys.argv[1:]))
