"""The operator of the plugin's layers. Needs torch, not vLLM."""
import gc
import pathlib

import pytest

import moracle

torch = pytest.importorskip("torch", reason="torch is not installed")

from moracle.integrations.vllm.operator import experts, name_of  # noqa: E402 needs torch

E, H, I, TOP_K, TOKENS = 4, 128, 64, 2, 5


@pytest.fixture
def packed():
    generator = torch.Generator().manual_seed(3)
    return moracle.pack(torch.randn(E, 2 * I, H, generator=generator) / 11, torch.randn(E, H, I, generator=generator) / 8,
                        top_k=TOP_K)


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(4)
    ids = torch.stack([torch.randperm(E, generator=generator)[:TOP_K] for _ in range(TOKENS)]).int()
    return torch.randn(TOKENS, H, generator=generator), torch.rand(TOKENS, TOP_K, generator=generator), ids


def test_operator_is_that_of_the_packed_experts(packed, inputs):
    name = name_of(packed, "model.layers.0")
    expected = packed(*inputs)
    assert torch.equal(experts(*inputs, name), expected)
    assert torch.equal(torch.ops.moracle.layer_experts(*inputs, name), expected)
    torch.library.opcheck(torch.ops.moracle.layer_experts.default, (*inputs, name))


def test_compiled_call_has_no_graph_break(packed, inputs):
    name = name_of(packed, "compiled")
    compiled = torch.compile(lambda x: experts(x * 2, *inputs[1:], name) + 1, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(inputs[0]), packed(inputs[0] * 2, *inputs[1:]) + 1)


def test_second_live_layer_of_a_name_gets_a_number(packed):
    assert [name_of(packed, "twice"), name_of(packed, "twice")] == ["twice", "twice#2"]


def test_name_is_free_after_its_layer(inputs):
    w1, w2 = torch.ones(E, 2 * I, H), torch.ones(E, H, I)
    first = moracle.pack(w1, w2, top_k=TOP_K)
    assert name_of(first, "freed") == "freed"
    del first
    gc.collect()
    assert name_of(moracle.pack(w1, w2, top_k=TOP_K), "freed") == "freed"


def test_calls_leave_no_memory_behind(packed, inputs):
    def resident_pages():
        return int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    name = name_of(packed, "steps")
    pages = []
    for _ in range(2):
        for _ in range(10_000):
            experts(*inputs, name)
        pages.append(resident_pages())
    assert pages[1] - pages[0] < 256, "1 MiB"
