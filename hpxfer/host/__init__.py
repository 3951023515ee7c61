"""The machine that hpxfer runs on: files, processes, memory, signals.

hpxfer runs on Linux and on macOS. On Windows `import hpxfer` works, and importing this room raises HpxferError.
"""

import sys

from hpxfer.errors import HpxferError

if sys.platform == "win32":
    raise HpxferError("hpxfer must run on Linux or macOS, got Windows; use the Windows Subsystem for Linux (WSL 2)")
