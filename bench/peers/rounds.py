"""Times engines in turns, in short rounds: changes of the machine's load then affect all of them alike. Ratios
are taken within each round."""

import dataclasses
import statistics
import time

from .peer import Absent

QUIET = 0.75  # repeat a round that measures less than this share of the best bandwidth
PATIENCE_SECONDS = 30  # after this time in one cell, repeat no round


@dataclasses.dataclass
class Entry:
    """An engine's format, its worker and its results."""

    peer: str
    format: object
    worker: object
    about: dict
    nrmse: dict = dataclasses.field(default_factory=dict)  # by number of tokens
    rounds: dict = dataclasses.field(default_factory=dict)  # tokens -> [[seconds of each run]]
    gone: str = ""  # why its timing stopped

    @property
    def name(self):
        return f"{self.peer} {self.format.name}"


class Clock:
    """`limits` is the worker that measures the machine's limits."""

    def __init__(self, limits):
        self.limits, self.best = limits, 0

    def _read(self):
        read = self.limits.call("read")
        self.best = max(self.best, read)
        return read

    def _time_round(self, entry, entries, num_tokens, seconds):
        if entry.gone:
            return None
        for other in entries:
            if not other.gone:
                other.worker.halt()
        try:
            return entry.worker.call("turn", num_tokens, seconds)
        except Absent as reason:
            entry.gone = str(reason)
        return None

    def time_cell(self, entries, num_tokens, seconds, rounds, peak):
        """Fills the entries' rounds for so many tokens. Repeats rounds with much less bandwidth than before,
        because other processes run; at most as many again. Returns the limits in the rounds that count: bytes
        per second, and operations per second of `peak`."""
        here = [entry for entry in entries if not entry.gone]
        done, quiet, ops = [], 0, [self.limits.call("ops", peak)]
        before = self._read()
        start = time.monotonic()
        while len(done) < rounds or (quiet < rounds and len(done) < 2 * rounds
                                     and time.monotonic() - start < PATIENCE_SECONDS):
            times = [self._time_round(entry, here, num_tokens, seconds / rounds)
                     for entry in (here if len(done) % 2 == 0 else here[::-1])]
            after = self._read()
            read, before = min(before, after), after
            quiet += read > QUIET * self.best
            done.append((read, times if len(done) % 2 == 0 else times[::-1]))
        ops.append(self.limits.call("ops", peak))
        done = sorted(done, key=lambda one: one[0])[-rounds:]
        for i, entry in enumerate(here):
            entry.rounds[num_tokens] = [] if entry.gone else [times[i] for _, times in done]
        return statistics.median(read for read, _ in done), statistics.median(ops)
