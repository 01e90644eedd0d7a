"""Tensors on an NVIDIA GPU: used in place, on the current stream, asynchronously."""
import threading
import time

import pytest
from gpu_layers import GPU, TOP_K, E, H, inputs, layer, matrices, torch

import moracle


def sleep(milliseconds):
    """Keeps the current stream busy."""
    torch.cuda._sleep(int(milliseconds * 2e6))


def test_arrays_are_used_in_place():
    packed, _ = layer()
    hidden, weights, ids = inputs(32)
    wide, out = torch.zeros(32, H + 64, dtype=hidden.dtype, device=GPU), torch.full((32, H + 64), 3.0, device=GPU)
    wide[:, :H] = hidden
    want = packed(hidden, weights, ids, torch.empty(32, H, device=GPU))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert packed(wide[:, :H], weights, ids, out[:, :H]).data_ptr() == out.data_ptr()
    assert torch.cuda.max_memory_allocated() == before
    assert torch.equal(out[:, :H], want)
    assert (out[:, H:] == 3).all()


@pytest.mark.parametrize("make", [torch.cuda.default_stream, lambda: torch.cuda.Stream()], ids=["default", "own"])
def test_call_runs_on_the_current_stream_and_returns_at_once(make):
    packed, _ = layer()
    hidden, weights, ids = inputs(8)
    want = packed(hidden, weights, ids)
    torch.cuda.synchronize()
    late, copy = torch.zeros_like(hidden), torch.zeros_like(want)
    torch.cuda.synchronize()
    with torch.cuda.stream(make()):
        sleep(200)
        late.copy_(hidden)
        output = torch.empty_like(want)
        begun = time.perf_counter()
        packed(late, weights, ids, output)
        seconds = time.perf_counter() - begun
        copy.copy_(output)
        done = torch.cuda.Event()
        done.record()
        assert not done.query()  # the call returned before the sleep ended
        done.synchronize()
    assert seconds < 0.1
    assert torch.equal(copy, want)  # zeros if the layer did not wait for the copy


def test_explicit_stream_is_used():
    packed, _ = layer()
    hidden, weights, ids = inputs(8)
    want = packed(hidden, weights, ids)
    torch.cuda.synchronize()
    stream, late, output = torch.cuda.Stream(), torch.zeros_like(hidden), torch.zeros_like(want)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        sleep(50)
        late.copy_(hidden)
    packed.moe.apply(late, ids, weights, output, stream=stream.cuda_stream)
    stream.synchronize()
    assert torch.equal(output, want)


def test_two_threads_use_streams_of_their_own():
    packed, _ = layer()
    arguments = inputs(16)
    want = packed(*arguments)
    torch.cuda.synchronize()
    wrong = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not torch.equal(packed(*arguments), want):
                    wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_threads_use_two_devices():
    """Two GPUs, or the GPU and the CPU."""
    others = [torch.device("cuda", 1)] if torch.cuda.device_count() > 1 else [torch.device("cpu")]
    arguments, wrong = inputs(16), []

    def work(device):
        own = [tensor.to(device) for tensor in arguments]
        packed = moracle.pack(*(torch.from_numpy(w).to(device, torch.float16) for w in matrices()), top_k=TOP_K)
        assert packed.moe.device == (str(device) if device.type == "cuda" else "cpu")
        for _ in range(30):
            output = packed(*own)
            wrong.append(output.device != device or not torch.allclose(output.cpu(), want, rtol=2e-2, atol=2e-2))
    want = layer()[0](*arguments).cpu()
    threads = [threading.Thread(target=work, args=(device,)) for device in [GPU, *others]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 60 and not any(wrong)


def test_invalid_expert_id_is_reported_by_synchronize():
    packed, _ = layer()
    hidden, weights, ids = inputs(4)
    ids[1, 0] = E + 3
    packed(hidden, weights, ids)
    with pytest.raises(moracle.Error, match=str(E + 3)):
        moracle.Device.shared("cuda:0").synchronize()
    moracle.Device.shared("cuda").synchronize()  # reported once
