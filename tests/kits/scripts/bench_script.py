"""Rounds of a benchmark's hand-written loop on worker processes and on one thread: `bench_script.py FILE`.

The processes are forked, since new ones would import everything again.
"""

import sys
from functools import partial

import torch

from app.benchmarks import processes
from app.benchmarks.competitors import raw_threads
from app.benchmarks.raw_processes import raw_processes
from app.benchmarks.work import Work
from app.models import CNN

if __name__ == "__main__":
    processes.METHOD = "fork"
    # a bias before a batch norm has no gradient but rounding, which Adam would blow up
    work = Work(clients=3, samples=16, batch_size=8, evaluate=True, net=partial(CNN, u=4, bias=False), tests=16)
    runs = raw_processes(work, rounds=2, workers=2), raw_threads(work, rounds=2, workers=1)
    found = [{"vector": run.vector, "correct": run.correct, "cpu_seconds": run.cpu_seconds} for run in runs]
    torch.save(found, sys.argv[1])
