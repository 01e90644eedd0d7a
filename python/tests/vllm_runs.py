"""Runs vLLM with and without the plugin in one process: python vllm_runs.py CASES.json > results.json

A case: {"name", "folder", "mode": off, auto or require, "prompts": token ids, "arguments": of vllm.LLM, "without_amx":
hide AMX from vLLM from here on}. Results, by name: {"tokens", "logprobs": per prompt and step the 20 most likely ids,
"log", "methods" of experts and "linears"} or {"error"}.
"""
import gc
import json
import logging
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_DISABLE_COMPILE_CACHE", "1")


class Lines(logging.Filter):
    """Keeps the plugin's messages. vLLM configures its loggers anew, which drops handlers but not filters."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def filter(self, record):
        self.lines.append(record.getMessage())
        return True


def methods_of(llm, of_layer, weights):
    """For each layer of a kind: the method's class, the module of its apply function, the number of original weights. Empty
    if the layers are in other processes."""
    worker = getattr(llm.llm_engine.engine_core.engine_core.model_executor, "driver_worker", None)
    if worker is None:
        return []
    return [[type(layer.quant_method).__name__, type(layer.quant_method).apply.__module__,
             sum(p.numel() for name, p in layer.named_parameters() if name.startswith(weights) and not name.endswith("_shape"))]
            for layer in worker.worker.model_runner.model.modules() if of_layer(layer)]


def run(case, lines):
    from vllm import LLM, SamplingParams
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.model_executor.layers.linear import LinearBase

    from moracle.integrations import vllm as plugin
    os.environ[plugin.VARIABLE] = case["mode"]
    op_registry_oot.pop("UnquantizedFusedMoEMethod", None)
    plugin.register()
    lines.lines.clear()
    arguments = {"enforce_eager": True, "max_model_len": 512, "max_num_seqs": 8, "dtype": "bfloat16",
                 "skip_tokenizer_init": True, "distributed_executor_backend": "uni", "enable_prefix_caching": False,
                 **case.get("arguments", {})}
    if case.get("without_amx"):
        import torch
        torch.cpu._is_amx_tile_supported = lambda: False
    llm = LLM(model=case["folder"], **arguments)
    sampling = SamplingParams(max_tokens=case.get("max_tokens", 8), temperature=0, logprobs=20, detokenize=False,
                              ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in case["prompts"]], sampling, use_tqdm=False)
    result = {"tokens": [list(o.outputs[0].token_ids) for o in outputs],
              "logprobs": [[{str(k): v.logprob for k, v in step.items()} for step in o.outputs[0].logprobs]
                           for o in outputs],
              "log": list(lines.lines),
              "methods": methods_of(llm, lambda layer: type(layer).__name__.endswith("RoutedExperts"),
                                    ("w13_w", "w2_w", "w13_q")),
              "linears": methods_of(llm, lambda layer: isinstance(layer, LinearBase), ("weight", "qweight"))}
    del llm
    gc.collect()
    return result


def main():
    cases = json.loads(open(sys.argv[1], encoding="utf-8").read())
    lines = Lines()
    logging.getLogger("vllm.moracle").addFilter(lines)
    results = {}
    for case in cases:
        try:
            results[case["name"]] = run(case, lines)
        except Exception as error:  # a test reads the text
            results[case["name"]] = {"error": f"{type(error).__name__}: {error}", "log": list(lines.lines)}
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
