"""Ranks that run one command together, for tests: started by hand over sockets, or by mpirun."""
import os
import pathlib
import socket
import subprocess
import sys
import time


reserved = []


def free_port():
    """It stays bound, so the system gives it to no other socket; with SO_REUSEADDR rank 0 can listen at it."""
    reserved.append(socket.socket())
    reserved[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved[-1].bind(("127.0.0.1", 0))
    return reserved[-1].getsockname()[1]


def start_rank(command, rank, size, port, output=None, **variables):
    """One process of a job that is connected over sockets. `output`: a file that takes its output."""
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
               MASTER_PORT=str(port), **variables)
    to = open(output, "w") if output else subprocess.PIPE
    return subprocess.Popen([str(word) for word in command], env=env, stdin=subprocess.PIPE, stdout=to,
                            stderr=subprocess.PIPE, text=True)


def start_ranks(commands, output=None):
    """One process for each command line. `output`: a file that takes rank 0's output."""
    port = free_port()
    return [start_rank(command, rank, len(commands), port, output if rank == 0 else None)
            for rank, command in enumerate(commands)]


def connections(process):
    """How many TCP connections of the process are established."""
    established = set()
    for line in open("/proc/net/tcp").readlines()[1:]:
        words = line.split()
        if words[3] == "01":
            established.add(f"socket:[{words[9]}]")
    count = 0
    for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            count += os.readlink(link) in established
        except OSError:  # closed since
            pass
    return count


def wait_until_connected(ranks, within):
    """Returns when each rank is connected to all others."""
    until = time.monotonic() + within
    while any(connections(rank) < len(ranks) - 1 for rank in ranks):
        if time.monotonic() > until or any(rank.poll() is not None for rank in ranks):
            sys.exit("the ranks did not connect")
        time.sleep(0.01)


def finish_ranks(ranks, within, prompt=""):
    """Gives rank 0 its prompt. Returns exit code, output and errors of each rank."""
    results = []
    for rank in ranks:
        try:
            rank.stdin.write(prompt if rank is ranks[0] else "")
            rank.stdin.close()
        except BrokenPipeError:
            pass
        rank.stdin = None
    for rank in ranks:
        out, err = rank.communicate(timeout=within)
        results.append((rank.returncode, out, err))
    return results


def start_mpi(mpirun, size, command):
    """The job: Open MPI starts `size` processes of one command line."""
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return subprocess.Popen([mpirun, "--oversubscribe", "--bind-to", "none", "-n", str(size), *map(str, command)], env=env,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def expect(condition, what, results):
    if not condition:
        sys.exit(f"{what}\n{results}")
