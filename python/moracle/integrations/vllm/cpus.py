"""The CPU device of a vLLM worker."""
import functools
import os
import re

from ..._moracle import Device
from ...errors import Unsupported

# vLLM gives a worker its CPUs by variables of OpenMP, which binds the worker's main thread to the first of them.
_VARIABLES = (("GOMP_CPU_AFFINITY", r"([\d\s,-]+)$"), ("KMP_AFFINITY", r".*proclist=\[([\d,-]+)\]"),
              ("OMP_PLACES", r"\{([\d,]+)\}$"))


def worker_cpus(environment=os.environ):
    """The CPUs of this worker, or an empty list if no variable tells them."""
    for variable, pattern in _VARIABLES:
        found = re.match(pattern, environment.get(variable, ""))
        if not found:
            continue
        cpus = []
        for part in re.split(r"[\s,]+", found[1].strip()):
            first, _, last = part.partition("-")
            cpus += range(int(first), int(last or first) + 1)
        return cpus
    return []


@functools.cache
def cpu_device():
    """One device for all layers of the process, on the threads that also run vLLM's own operators.

    A team of its own would share the worker's CPUs with threads of OpenMP, which spin after each operator: a step of two
    layers then took 87 ms in place of 10 (two cores). Without OpenMP, a thread on each of the worker's CPUs.
    """
    try:
        return Device("cpu", openmp=True)
    except Unsupported:
        return Device("cpu", cpus=worker_cpus())
