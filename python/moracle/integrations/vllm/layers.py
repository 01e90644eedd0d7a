"""What experts and linear layers share: messages, and freed weights."""
import weakref

import torch
from vllm.logger import init_logger

from ..._moracle import explain

logger = init_logger("vllm.moracle")


class _Group:
    """Layers with the same choice. The last of them to be packed logs one line."""

    def __init__(self, kind):
        self.kind, self.layers, self.packed = kind, [], 0

    def add(self, name):
        self.layers.append(name)

    def log(self, selection, packed):
        self.packed += 1
        self.bytes = packed.weight_bytes + (self.bytes if self.packed > 1 else 0)
        if self.packed < len(self.layers):
            return
        span = self.layers[0] if len(self.layers) == 1 else f"{self.layers[0]} to {self.layers[-1]}"
        count = f"{len(self.layers)} {self.kind}{'s' if len(self.layers) > 1 else ''}"
        logger.info("moracle serves %s (%s): %s, %s; %.1f MiB packed", span, count, packed.spec.scheme.name,
                    explain(selection, False).splitlines()[0].removeprefix("→ "), self.bytes / 2**20)
        self.layers, self.packed = [], 0


_groups = {}  # text of a choice: _Group
_plain = {}  # choice: weak reference to the config of the last model that logged it
_declined = set()  # reasons, each logged once


def group_of(choice, kind="layer"):
    """The group of layers with this choice."""
    return _groups.setdefault(choice, _Group(kind))


def log_plain(name, packed, config):
    """Logs the first of a model's linear layers without quantization that run on a row. `config`: vLLM's, of the model."""
    choice = f"{packed.linear.spec.scheme.name}, {explain(packed.selection, False).splitlines()[0].removeprefix('→ ')}"
    if choice not in _plain or _plain[choice]() is not config:
        _plain[choice] = weakref.ref(config)
        logger.info("moracle serves %s and other linear layers without quantization: %s", name, choice)


def log_declined(name, reason):
    """Logs why vLLM's own method serves a layer, once for each reason."""
    if str(reason) not in _declined:
        _declined.add(str(reason))
        logger.warning("moracle declines %s: %s; vLLM's own method serves such layers", name, reason)


def free(weights):
    """Frees the elements of parameters, which stay: vLLM's code asks for them."""
    for weight in weights:
        weight.data = torch.empty(0, dtype=weight.dtype, device=weight.device)
