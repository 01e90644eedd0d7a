"""One engine with one format in its own process.

A crash then ends only this engine, and each process has its own OpenMP runtime. The driver stops every other process
while one is timed, so that their spinning threads take no CPU time.
"""

import atexit
import ctypes
import multiprocessing
import os
import signal
import time

from .engines import find_peer
from .moracle import Limits
from .peer import Absent
from .problem import Problem, nrmse

PR_SET_PDEATHSIG = 1  # of prctl(2)
WARM_BELOW_SECONDS = 0.25  # runs shorter than this get one uncounted run first


class _Engine:
    def __init__(self, peer, format_name, shape, num_layers, max_num_tokens, threads):
        self.peer, self.problem = find_peer(peer), Problem(shape)
        self.num_layers = num_layers
        self.layers = self.peer.make(
            format_name, self.problem, num_layers, max_num_tokens, threads)
        self.num_tokens, self.turns = 0, 0

    def about(self):
        return {"version": self.peer.version(), "note": getattr(self.layers, "note", "")}

    def _prepare(self, num_tokens):
        if num_tokens == self.num_tokens:
            return
        self.layers.forget()
        self.batch, self.num_tokens, self.turns = self.problem.batch(num_tokens), num_tokens, 0
        # Every pair of layer and routing once before any repeats.
        self.jobs = [
            self.layers.prepare(layer, self.batch.hidden, ids, weights)
            for ids, weights in zip(self.batch.ids, self.batch.weights)
            for layer in range(self.num_layers)]

    def check(self, num_tokens):
        """The larger nrmse of the first and the last token's outputs."""
        self._prepare(num_tokens)
        self.layers.load(self.jobs[0])
        self.layers.run(self.jobs[0])
        got = self.layers.output(self.jobs[0])
        return max(nrmse(got[token], self.problem.reference(0, self.batch, 0, token))
                   for token in (0, num_tokens - 1))

    def _once(self):
        job = self.jobs[self.turns % len(self.jobs)]
        self.turns += 1
        self.layers.load(job)
        start = time.perf_counter()
        self.layers.run(job)
        return time.perf_counter() - start

    def turn(self, num_tokens, seconds):
        """Seconds of each run, for about `seconds` in total; at least one run."""
        self._prepare(num_tokens)
        first = self._once()
        times = [first] if first > WARM_BELOW_SECONDS else []
        while not times or sum(times) < seconds:
            times.append(self._once())
        return times


class _Limits:
    def __init__(self, threads):
        self.limits = Limits(threads)

    def about(self):
        return self.limits.peaks

    def read(self):
        return self.limits.read()

    def ops(self, peak):
        return self.limits.ops(peak)


def _serve(connection, kind, args):
    # A halted process would outlive a driver that is killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # engines print banners; stdout is for the table
    try:
        served = {"engine": _Engine, "limits": _Limits}[kind](*args)
        connection.send(("done", served.about()))
        while True:
            method, arguments = connection.recv()
            connection.send(("done", getattr(served, method)(*arguments)))
    except EOFError:
        pass
    except Absent as reason:
        connection.send(("absent", str(reason)))
    except (ImportError, OSError, RuntimeError, AttributeError, ValueError) as error:
        connection.send(("absent", f"{type(error).__name__}: {error}".splitlines()[0]))


class Worker:
    """A process that is stopped (SIGSTOP) unless an answer is awaited. Raises Absent, with the reason, if it
    cannot start or if it ends."""

    def __init__(self, kind, args, environment):
        before = dict(os.environ)
        os.environ.update({"OPENBLAS_NUM_THREADS": "1", **environment})  # numpy's, when it checks
        try:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(theirs, kind, args), daemon=True)
            self.process.start()
            theirs.close()
        finally:
            os.environ.clear()
            os.environ.update(before)
        atexit.register(self.close)
        self.about = self._answer()

    def _answer(self):
        try:
            kind, value = self.connection.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise Absent(f"its process ended with {how}") from None
        if kind == "absent":
            self.close()
            raise Absent(value)
        self.halt()
        return value

    def halt(self):
        """Stops the process; also if another process let it continue."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def call(self, method, *args):
        os.kill(self.process.pid, signal.SIGCONT)
        self.connection.send((method, args))
        return self._answer()

    def close(self):
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
