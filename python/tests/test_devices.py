"""Devices and streams, without a GPU: shared devices, errors that are equal on every machine."""
import os
import subprocess
import sys
import types

import numpy as np
import pytest

import moracle


without_cuda = pytest.mark.skipif(moracle.has_cuda(), reason="this package and this machine have an NVIDIA GPU")


@without_cuda
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_absent_gpu_is_refused_by_name(name):
    for _ in range(2):
        with pytest.raises(moracle.Unsupported) as raised:
            moracle.Device.shared(name)
        assert raised.value.place == f"device '{name}'" or raised.value.place == "device 'cuda:0'"
        assert raised.value.need.startswith(("a device of this build: cpu", "an NVIDIA GPU"))


@without_cuda
def test_tensor_of_a_gpu_is_refused_before_it_is_read():
    class OnGpu:
        device, dtype, shape = types.SimpleNamespace(type="cuda", index=0), np.dtype("float32"), (2, 8, 4)

        def cpu(self):
            raise AssertionError("it was copied")
    with pytest.raises(moracle.Unsupported, match="device 'cuda:0'"):
        moracle.pack(OnGpu(), OnGpu(), top_k=1)


def test_layers_with_one_name_share_a_device(model_folder):
    moe = moracle.FusedMoe(moracle.Checkpoint(model_folder).moe_layer(0))
    assert (moe.device, moracle.Device.shared("cpu").name) == ("cpu", "cpu")
    moracle.Device.shared("cpu").synchronize()


def test_stream_of_a_cpu_layer_is_refused(model_folder, device):
    moe = moracle.FusedMoe(moracle.Checkpoint(model_folder).moe_layer(0), device=device)
    hidden = np.zeros((1, moe.spec.hidden_size), np.float32)
    ids, weights = np.zeros((1, moe.spec.top_k), np.int32), np.zeros((1, moe.spec.top_k), np.float32)
    with pytest.raises(moracle.InvalidArgument, match="stream: needs None: a CPU has no streams; it is 7"):
        moe.apply(hidden, ids, weights, stream=7)
    with pytest.raises(moracle.InvalidArgument, match="stream"):
        device.synchronize(stream=7)


def test_unknown_device_is_refused():
    with pytest.raises(moracle.InvalidArgument, match="cpu, cuda\\[:n\\] or opencl\\[:n\\]") as raised:
        moracle.Device("gpu")
    assert raised.value.place == "device"


@pytest.mark.parametrize("threads", [-1, -2**31, 4097, 5000, 2**31 - 1])
def test_threads_outside_their_bounds_are_refused(threads, model_folder):
    for open_it in (lambda: moracle.Device("cpu", threads=threads),
                    lambda: moracle.Model.load(model_folder, threads=threads)):
        with pytest.raises(moracle.InvalidArgument, match=f"threads: needs 1 to 4096, or 0 for all CPUs.* it is {threads}"):
            open_it()


def in_a_process(code):
    """(exit status, output) of a process whose main thread is bound to its first CPU."""
    first = min(os.sched_getaffinity(0))
    code = f"import os; usable = sorted(os.sched_getaffinity(0)); os.sched_setaffinity(0, {{{first}}})\nimport moracle\n{code}"
    run = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, timeout=60)
    return run.returncode, run.stdout + run.stderr


several_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process has one CPU")


@several_cpus
def test_narrow_mask_of_the_caller_is_warned_of():
    status, text = in_a_process("moracle.Device('cpu')")
    assert status == 0
    assert "RuntimeWarning: device cpu has one thread, because the calling thread is bound to CPU" in text
    assert in_a_process("moracle.Device('cpu', threads=1); moracle.Device('cpu', cpus=usable)") == (0, "")


@several_cpus
def test_cpus_open_a_team_outside_the_mask_of_the_caller():
    code = """import time
before = set(os.listdir('/proc/self/task'))
device = moracle.Device('cpu', cpus=usable)
threads = set(os.listdir('/proc/self/task')) - before
until = time.monotonic() + 30  # each thread binds itself when it starts
while any(os.sched_getaffinity(int(thread)) != set(usable) for thread in threads):
    assert time.monotonic() < until, threads
    time.sleep(0.01)
assert os.sched_getaffinity(0) == {usable[0]} and len(threads) < len(usable)"""
    assert in_a_process(code) == (0, "")


def test_cpu_that_the_system_refuses_is_named():
    with pytest.raises(moracle.InvalidArgument, match="cpus: needs CPUs that this process may use; the system refuses CPU 100000"):
        moracle.Device("cpu", cpus=[min(os.sched_getaffinity(0)), 100000])


def test_openmp_is_refused_where_no_module_brought_it():
    code = """try:
    moracle.Device('cpu', openmp=True)
except moracle.Unsupported as error:
    assert error.place == 'openmp', error.place
else:
    raise AssertionError('it was opened')"""
    assert in_a_process(code) == (0, "")


@several_cpus
def test_openmp_runs_layers_on_torchs_threads_with_the_bits_of_own_threads():
    pytest.importorskip("torch")
    code = """import numpy as np, torch
torch.set_num_threads(2)
torch.ones(1 << 20).sum()  # torch starts its threads with the first large operator
w = np.random.default_rng(3).standard_normal((512, 256)).astype(np.float32)
moracle.pack_linear(w, device=moracle.Device('cpu', threads=1))  # the oracle asks drivers of GPUs, which start threads
before = set(os.listdir('/proc/self/task'))
device = moracle.Device('cpu', openmp=True)
x = np.random.default_rng(4).standard_normal((9, 256)).astype(np.float32)
output = moracle.pack_linear(w, device=device)(x)
assert set(os.listdir('/proc/self/task')) == before
own = moracle.pack_linear(w, device=moracle.Device('cpu', threads=2))(x)
assert output.tobytes() == own.tobytes()
for options in ({'pin': True}, {'cpus': usable}):
    try:
        moracle.Device('cpu', openmp=True, **options)
    except moracle.InvalidArgument as error:
        assert error.place in options, error
    else:
        raise AssertionError(options)"""
    status, text = in_a_process(code)
    assert status == 0, text
