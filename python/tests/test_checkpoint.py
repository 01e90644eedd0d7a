"""Checkpoint, DescribedWeights and quantize."""
import pytest

import moracle


def test_checkpoint_describes_its_folder(checkpoint, model_folder):
    assert checkpoint.folder == str(model_folder)
    assert checkpoint.architecture == "Qwen3MoeForCausalLM"
    assert checkpoint.producer == "gptq"
    assert checkpoint.moe_layers == list(range(checkpoint.num_layers)) == [0, 1, 2]
    assert checkpoint.total_bytes > 0
    weights = checkpoint.moe_layer(1)
    assert weights.spec.name == "model.layers.1.mlp.experts"
    assert weights.spec.scheme == moracle.Scheme("int4-w4a16-g128")
    assert "model.layers.1.mlp.experts.0.gate_proj.qweight" in weights.tensors
    assert weights.source_bytes > 0


def test_layer_without_experts_is_refused(checkpoint):
    with pytest.raises(moracle.InvalidArgument, match="layer 9"):
        checkpoint.moe_layer(9)


def test_quantized_checkpoint_is_not_quantized_again(checkpoint, tmp_path):
    with pytest.raises(moracle.Unsupported):
        moracle.quantize(checkpoint, "fp8-per-block", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_quantize_writes_a_folder_that_loads(shared_checkpoint, tmp_path):
    report = moracle.quantize(shared_checkpoint("qwen3moe-bf16"), "int8-per-channel", tmp_path / "int8")
    assert report["schemes"] == ["int8-w8a8"]
    assert report["bytes_after"] < report["bytes_before"]
    assert moracle.Checkpoint(tmp_path / "int8").moe_layer(0).spec.scheme.name == "int8-w8a8"


def test_quantize_writes_gguf_that_loads(shared_checkpoint, tmp_path):
    file = tmp_path / "model.gguf"
    report = moracle.quantize(shared_checkpoint("qwen3moe-bf16"), "q8_0", file, format="gguf")
    assert report["architecture"] == "qwen3moe"
    assert report["bytes_after"] == file.stat().st_size
    assert sum(one["bytes"] for one in report["types"]) < report["bytes_after"]
    written = moracle.Checkpoint(file)
    assert written.producer == "gguf"
    assert "q8_0" in {one["type"] for one in report["types"]}


@pytest.mark.parametrize("scheme, options, message", [
    ("q9_9", {}, "'q9_9' is unknown"),
    ("q8_0", {"max_shard_bytes": 1000}, "max_shard_bytes: needs another format than gguf"),
])
def test_wrong_requests_for_gguf_are_named(shared_checkpoint, tmp_path, scheme, options, message):
    with pytest.raises(moracle.InvalidArgument, match=message):
        moracle.quantize(shared_checkpoint("qwen3moe-bf16"), scheme, tmp_path / "a.gguf", format="gguf", **options)
    assert not (tmp_path / "a.gguf").exists()
