"""Settings of a test process and of those that it starts, made on import, before the first tensor operation."""

import os
import signal

# Some virtual machines announce AMX units that they do not have: bf16 products would end the process there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it is ignored, as in a background job

if hasattr(os, "sched_setaffinity") and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
    # workers and the programs that they start would otherwise wait for each other's threads
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
