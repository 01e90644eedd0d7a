"""The problem that every engine solves: one layer's experts, the tokens, their routing, and the reference output.

Weights are blocks of 128 rows from a small pool of random blocks. A layer of gigabytes is then made at the
speed of a copy. Formats with independent rows are quantized once per pool. The reference builds the float32
weights of one expert at a time.
"""

import dataclasses
import functools

import numpy as np

BLOCK = 128  # rows; as many as share a scale in the widest format
POOL_BLOCKS = 12
WEIGHTS = ("gate", "up", "down")


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    num_experts: int
    hidden_size: int
    intermediate_size: int
    top_k: int

    @property
    def weights_per_expert(self):
        return 3 * self.hidden_size * self.intermediate_size


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("qwen3-30b-a3b", 128, 2048, 768, 8),
        Shape("mixtral-8x7b", 8, 4096, 14336, 2),
        Shape("small", 16, 512, 256, 4),
    )
}


def find_shape(text):
    """A name, or experts x hidden size x intermediate size x top_k ("16x512x256x4")."""
    if text in SHAPES:
        return SHAPES[text]
    try:
        experts, hidden, intermediate, top_k = (int(part) for part in text.split("x"))
    except ValueError:
        raise SystemExit(f"--shape: '{text}' is neither {', '.join(SHAPES)} nor ExHxIxK")
    if hidden % BLOCK or intermediate % BLOCK or not 0 < top_k <= experts:
        raise SystemExit(f"--shape: sizes are multiples of {BLOCK}, top_k at most the experts")
    return Shape(text, experts, hidden, intermediate, top_k)


def to_bf16(values):
    """float32 to the bits of bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclasses.dataclass
class Batch:
    """A batch: hidden [M, H] f32, and for each routing ids and weights [M, top_k]."""

    hidden: np.ndarray
    ids: list
    weights: list

    @property
    def num_tokens(self):
        return len(self.hidden)

    @property
    def distinct(self):
        """The mean number of experts with a token."""
        return float(np.mean([len(np.unique(ids)) for ids in self.ids]))


class Problem:
    def __init__(self, shape, seed=0):
        self.shape = shape
        self.seed = seed

    def pool(self, weight):
        """The pool of rows of `weight`: f32 [POOL_BLOCKS * BLOCK, K], exact in bfloat16."""
        down = weight == "down"
        return self._pool(self.shape.intermediate_size if down else self.shape.hidden_size, down)

    @functools.cache
    def _pool(self, k, down):
        random = np.random.default_rng([self.seed, k, down])
        rows = random.standard_normal((POOL_BLOCKS * BLOCK, k), np.float32) / np.sqrt(k)
        return from_bf16(to_bf16(rows))

    def rows(self, weight):
        down = weight == "down"
        return self.shape.hidden_size if down else self.shape.intermediate_size

    def blocks(self, layer, weight):
        """The pool blocks of each expert: i32 [E, N / BLOCK]."""
        random = np.random.default_rng([self.seed, layer, WEIGHTS.index(weight)])
        size = (self.shape.num_experts, self.rows(weight) // BLOCK)
        return random.integers(0, POOL_BLOCKS, size, np.int32)

    def gather(self, layer, weight, pool):
        """Gathers all experts' rows from a pool in any format: [E, N, ...] from pool [rows, ...]."""
        blocks = self.blocks(layer, weight)
        by_block = pool.reshape(POOL_BLOCKS, BLOCK, *pool.shape[1:])
        return by_block[blocks].reshape(len(blocks), -1, *pool.shape[1:])

    def expert(self, layer, weight, expert):
        """One expert's float32 matrix [N, K]."""
        pool = self.pool(weight)
        blocks = self.blocks(layer, weight)[expert]
        return pool.reshape(POOL_BLOCKS, BLOCK, -1)[blocks].reshape(-1, pool.shape[1])

    def batch(self, num_tokens):
        """Random distinct experts for each token. Single tokens use every expert once before any repeats."""
        shape, random = self.shape, np.random.default_rng([self.seed, 7, num_tokens])
        hidden = random.standard_normal((num_tokens, shape.hidden_size), np.float32)
        if num_tokens == 1:
            count = max(shape.num_experts // shape.top_k, 1)
            order = random.permutation(shape.num_experts).astype(np.int32)
            ids = [order[i * shape.top_k:][None, :shape.top_k] for i in range(count)]
        else:
            count = 12 if num_tokens <= 64 else 6 if num_tokens <= 256 else 3
            ids = [
                np.argsort(random.random((num_tokens, shape.num_experts)), axis=1)[:, :shape.top_k]
                for _ in range(count)
            ]
        ids = [np.ascontiguousarray(one, np.int32) for one in ids]
        weights = [
            random.uniform(0.5, 1, one.shape).astype(np.float32) / shape.top_k for one in ids
        ]
        return Batch(from_bf16(to_bf16(hidden)), ids, weights)

    def reference(self, layer, batch, routing, token):
        """One token's output in float64 from the unquantized weights."""
        x = batch.hidden[token].astype(np.float64)
        out = np.zeros(self.shape.hidden_size)
        for expert, weight in zip(batch.ids[routing][token], batch.weights[routing][token]):
            gate = self.expert(layer, "gate", expert) @ x
            up = self.expert(layer, "up", expert) @ x
            out += weight * (self.expert(layer, "down", expert) @ (gate / (1 + np.exp(-gate)) * up))
        return out


def nrmse(got, expected):
    """Root of the mean square error over the root of the mean square."""
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
