"""Executors: who trains the stacks, and where. (Not `hpxfer/run/`: `hpxfer.run` is the function that users call.)"""

from hpxfer.executors.executor import STOP_S, Executor, More, Placement, Stopping, Trains, once
from hpxfer.executors.kinds import EXECUTORS, make_executor
from hpxfer.executors.lost_workers import TRIES
from hpxfer.executors.worker import TrainStack, keep_memory
