"""What an engine has to be, so that it can be timed beside the others: one class in one file."""

import abc
import dataclasses


@dataclasses.dataclass(frozen=True)
class Format:
    name: str  # as the engine calls it: "q4_0:repack", "int8-w8a8"
    bits: float  # of memory per weight, scales included
    family: int  # 4, 8 or 16: these run in turns with each other
    beside: str = ""  # Moracle's format with the same arithmetic, which it is compared with


class Absent(Exception):
    """Why an engine, or one of its formats, cannot be timed here."""


class Layers(abc.ABC):
    """Some layers with weights of their own, all in one format."""

    @abc.abstractmethod
    def prepare(self, layer, hidden, ids, weights):
        """Not timed, once for each layer and routing: hidden f32 [M, H], ids i32 [M, top_k] and
        weights f32 [M, top_k] in the numbers that the engine takes. Returns what `run` needs."""

    def load(self, job):
        """Not timed, before each run, and to be short: threads wait by spinning only so long."""

    @abc.abstractmethod
    def run(self, job):
        """Timed: from activations to activations, the router left out; done when it returns."""

    @abc.abstractmethod
    def output(self, job):
        """Not timed: f32 [M, H] of the run before."""

    def forget(self):
        """Not timed: no job that was prepared will be run again."""


class Peer(abc.ABC):
    name = ""
    packages = ()  # of PyPI, installed without what they depend on,
    needs = ()  # and those of it that are used here, with theirs
    install_environment = {}  # for those that are built when they are installed

    @abc.abstractmethod
    def formats(self):
        """Every Format that this peer can run."""

    @abc.abstractmethod
    def make(self, format_name, problem, num_layers, max_num_tokens, threads):
        """Layers 0 to num_layers - 1 of the problem. Raises Absent where it cannot: not installed,
        an instruction set that is missing."""

    def environment(self, threads):
        """Variables that its process starts with."""
        return {}

    def version(self):
        """The installed package and its version: "package 1.2"."""
        import importlib.metadata

        found = []
        for package in self.packages:
            try:
                found.append(f"{package} {importlib.metadata.version(package)}")
            except importlib.metadata.PackageNotFoundError:
                pass
        return ", ".join(found)


def openmp(threads):
    """One thread per core, pinned, for engines on OpenMP."""
    return {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
