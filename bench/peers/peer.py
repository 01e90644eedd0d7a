"""The interface of an engine that is timed beside the others: one class in one file."""

import abc
import dataclasses


@dataclasses.dataclass(frozen=True)
class Format:
    name: str  # as the engine calls it: "q4_0:repack", "int8-w8a8"
    bits: float  # of memory per weight, scales included
    family: int  # 4, 8 or 16: formats of one family are timed together
    beside: str = ""  # the Moracle format with the same arithmetic, to compare with


class Absent(Exception):
    """The reason why an engine, or one of its formats, cannot be timed here."""


class Layers(abc.ABC):
    """Layers with their own weights, all in one format."""

    @abc.abstractmethod
    def prepare(self, layer, hidden, ids, weights):
        """Not timed, called once for each layer and routing. Converts hidden f32 [M, H], ids i32 [M, top_k] and
        weights f32 [M, top_k] to the engine's types. Returns the job that `run` takes."""

    def load(self, job):
        """Not timed, called before each run. Keep it short: waiting threads spin only briefly."""

    @abc.abstractmethod
    def run(self, job):
        """Timed: from activations to activations, without the router. Returns when the work is done."""

    @abc.abstractmethod
    def output(self, job):
        """Not timed. Returns f32 [M, H], the output of the last run."""

    def forget(self):
        """Not timed. Frees prepared jobs: none of them will run again."""


class Peer(abc.ABC):
    name = ""
    packages = ()  # PyPI packages, installed without their dependencies
    needs = ()  # those dependencies that are used here, installed with their own
    install_environment = {}  # environment variables for packages that build on installation

    @abc.abstractmethod
    def formats(self):
        """Every Format that this peer can run."""

    @abc.abstractmethod
    def make(self, format_name, problem, num_layers, max_num_tokens, threads):
        """Makes layers 0 to num_layers - 1 of the problem. Raises Absent if the engine is not installed or lacks
        an instruction set."""

    def environment(self, threads):
        """Environment variables of its process."""
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
