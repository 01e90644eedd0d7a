"""Errors as exceptions with file, place, need and fact."""
import pickle

import numpy as np
import pytest

import moracle


def test_error_has_file_place_need_and_fact(tmp_path):
    with pytest.raises(moracle.BadFile) as raised:
        moracle.Checkpoint(tmp_path)
    error = raised.value
    assert str(tmp_path) in error.file
    assert error.need and error.fact
    assert str(error) == f"{error.file}: needs {error.need}; {error.fact}"


@pytest.mark.parametrize("kind, standard", [
    (moracle.InvalidArgument, ValueError), (moracle.BadFile, ValueError), (moracle.Unsupported, NotImplementedError),
    (moracle.IoError, OSError), (moracle.OutOfMemory, MemoryError), (moracle.Cancelled, moracle.Error)])
def test_kinds_are_also_standard_exceptions(kind, standard):
    assert issubclass(kind, moracle.Error)
    assert issubclass(kind, standard)


def test_error_survives_pickling():
    with pytest.raises(moracle.InvalidArgument) as raised:
        moracle.Scheme("int3-w3a16-g128")
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is moracle.InvalidArgument
    assert (str(again), again.place, again.need) == (str(raised.value), raised.value.place, raised.value.need)


LONE = "a\ud800b"


def calls_with_a_lone_surrogate(model, folder):
    layer = {"num_experts": 8, "hidden_size": 64, "intermediate_size": 32, "top_k": 2}
    checkpoint = moracle.Checkpoint(folder)
    w1, w2 = np.zeros((2, 64, 32), np.float32), np.zeros((2, 32, 32), np.float32)
    return {
        "prompt": [lambda: model.generate(LONE), lambda: model.stream(LONE), lambda: model.logits(LONE)],
        "text": [lambda: model.encode(LONE), lambda: model.perplexity(LONE)],
        "name": [lambda: moracle.Device(LONE), lambda: moracle.Machine.find(LONE), lambda: moracle.Scheme(LONE)],
        "machine": [lambda: moracle.select(moracle.LayerSpec(**layer), LONE)],
        "device": [lambda: moracle.select(moracle.LayerSpec(**layer), device=LONE), lambda: moracle.Device.shared(LONE),
                   lambda: moracle.Model.load(folder, device=LONE)],
        "backend": [lambda: moracle.select(moracle.LayerSpec(**layer), backend=LONE),
                    lambda: moracle.Model.load(folder, backend=LONE),
                    lambda: moracle.bench_layer("8x64x32x2", backend=LONE)],
        "layer": [lambda: moracle.bench_layer(LONE)],
        "scheme": [lambda: moracle.LayerSpec(scheme=LONE, **layer), lambda: moracle.pack(w1, w2, top_k=1, scheme=LONE),
                   lambda: checkpoint.moe_layer(0).quantize(LONE), lambda: moracle.quantize(checkpoint, LONE, "to")],
        "activation": [lambda: moracle.LayerSpec(activation=LONE, **layer),
                       lambda: moracle.pack(w1, w2, top_k=1, activation=LONE)],
        "packing": [lambda: moracle.pack(w1, w2, top_k=1, packing=LONE)],
        "format": [lambda: moracle.quantize(checkpoint, "mxfp8", "to", format=LONE)],
        "quantization": [lambda: checkpoint.moe_layer(0, LONE), lambda: moracle.Model.load(folder, quantization=LONE)],
        "modules": [lambda: checkpoint.linear([LONE])],
        "activations": [lambda: moracle.Model.load(folder, activations=LONE)],
        "kv_cache": [lambda: moracle.Model.load(folder, kv_cache=LONE)],
        "adapters": [lambda: moracle.Model.load(folder, adapters=[LONE])],
        "folder": [lambda: moracle.Checkpoint(LONE)],
        "source": [lambda: moracle.Model.load(LONE)],
        "output": [lambda: moracle.quantize(checkpoint, "mxfp8", LONE)],
        "checkpoint": [lambda: moracle.quantize(LONE, "mxfp8", "to")]}


def test_lone_surrogate_is_refused_by_the_arguments_name(model, model_folder):
    for argument, calls in calls_with_a_lone_surrogate(model, model_folder).items():
        for number, call in enumerate(calls):
            with pytest.raises(moracle.InvalidArgument, match=f"^{argument}: needs ") as raised:
                call()
            assert "\\ud800" in str(raised.value), (argument, number)


def test_argument_of_another_type_is_refused_by_its_name(model, model_folder):
    for argument, call in {"source": lambda: moracle.Model.load(5), "checkpoint": lambda: moracle.quantize(5, "mxfp8", "to"),
                           "machine": lambda: moracle.select(moracle.LayerSpec(num_experts=8, hidden_size=64,
                                                                               intermediate_size=32, top_k=2), 5),
                           "layer": lambda: moracle.bench_layer(5), "prompt": lambda: model.generate(5)}.items():
        with pytest.raises(moracle.InvalidArgument, match=f"^{argument}: needs "):
            call()


def test_errors_name_arguments_instead_of_command_options(model, model_folder):
    for argument, call in {"max_tokens": lambda: model.generate("a", max_tokens=0),
                           "temperature": lambda: model.generate("a", temperature=-1),
                           "window": lambda: model.perplexity("a b c", window=1),
                           "kv_cache": lambda: moracle.Model.load(model_folder, kv_cache="int3"),
                           "activations": lambda: moracle.Model.load(model_folder, activations="3bit"),
                           "quantization": lambda: moracle.Model.load(model_folder, quantization="q4"),
                           "scheme": lambda: moracle.quantize(model_folder, "q4", "to"),
                           "machine": lambda: moracle.Machine.find("h201")}.items():
        with pytest.raises(moracle.Error) as raised:
            call()
        assert raised.value.place == argument


def test_consumed_weights_are_refused(checkpoint, device):
    weights = checkpoint.moe_layer(0)
    moracle.FusedMoe(weights, device=device)
    with pytest.raises(moracle.InvalidArgument, match="weights: needs weights that no layer has consumed"):
        moracle.FusedMoe(weights, device=device)
