"""All engines. A new engine is one file and one line here."""

from .ggml import Ggml
from .kt import KTransformers
from .moracle import Moracle
from .onednn import OneDnn
from .vllm_cpu import Vllm

PEERS = (
    Moracle(),
    Ggml(),
    OneDnn(),
    KTransformers(),
    Vllm(),
)


def find_peer(name):
    for peer in PEERS:
        if peer.name == name:
            return peer
    raise SystemExit(f"'{name}' is none of {', '.join(peer.name for peer in PEERS)}")
