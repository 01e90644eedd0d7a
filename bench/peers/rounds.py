"""The clock: engines take turns in short rounds, so that whatever else the machine does meets all
of them; a ratio is taken within each round."""

import dataclasses
import statistics

from .peer import Absent


@dataclasses.dataclass
class Entry:
    """An engine's format on its worker, and what became of it."""

    peer: str
    format: object
    worker: object
    about: dict
    nrmse: dict = dataclasses.field(default_factory=dict)  # by number of tokens
    rounds: dict = dataclasses.field(default_factory=dict)  # tokens -> [[seconds of each run]]
    gone: str = ""  # why it was not timed any further

    @property
    def name(self):
        return f"{self.peer} {self.format.name}"


def time_cell(entries, limits, num_tokens, seconds, rounds, peak):
    """Fills entries' rounds for so many tokens. Returns the limits around: bytes per second, and
    operations per second of `peak`."""
    here = [entry for entry in entries if not entry.gone]
    for entry in here:
        entry.rounds[num_tokens] = []
    read, ops = [limits.call("read")], [limits.call("ops", peak)]
    for turn in range(rounds):
        for entry in here if turn % 2 == 0 else reversed(here):
            if entry.gone:
                continue
            for other in here:
                if not other.gone:
                    other.worker.halt()
            try:
                entry.rounds[num_tokens].append(
                    entry.worker.call("turn", num_tokens, seconds / rounds))
            except Absent as reason:
                entry.gone = str(reason)
        read.append(limits.call("read"))
    ops.append(limits.call("ops", peak))
    return statistics.median(read), statistics.median(ops)
