"""The machine that hpxfer runs on (files, processes, memory, signals), and how output is written.

hpxfer runs on Linux and on macOS. On Windows `import hpxfer` works, and importing this room raises HpxferError.
"""

import sys

from hpxfer.errors import HpxferError

if sys.platform == "win32":
    raise HpxferError("hpxfer must run on Linux or macOS, got Windows; use the Windows Subsystem for Linux (WSL 2)")

from hpxfer.host.files import (
    NoLocks,
    append_line,
    cache_folder,
    folder_at,
    half_written,
    json_lines,
    locked,
    make_folder,
    open_regular,
    path_problem,
    prove_writable,
    read_bytes,
    read_text,
    reason,
    remove_half_written,
    require_reachable,
    sync_folder,
    text_writer,
    wait_for_lock,
    write_files,
    write_folder,
)
from hpxfer.host.interrupts import Interrupted, Interrupts, interrupts
from hpxfer.host.machine import (
    cpu_name,
    gpu_bytes,
    gpu_name,
    has_cuda,
    host_bytes,
    library,
    machine_id,
    num_cpus,
    process_is_gone,
    process_started,
)
from hpxfer.host.names import (
    CONTROL,
    FRACTIONS,
    NATS,
    JudgedLoss,
    hp_text,
    is_control,
    is_short,
    name_of,
    scale_text,
    scales_text,
    shape_label,
    value_text,
)
from hpxfer.host.output import NOTHING, Cell, Column, Table, aligned, json_ready, spell_time, table_of, text_table
from hpxfer.host.uri import Uri, is_uri, parse_root, storage_problem
