#!/usr/bin/env python3
"""Times decode steps of vLLM with the plugin and of `moracle serve` in turns: the same checkpoint, prompts and sampling.

    bench/random_checkpoint.py FOLDER --layers 8
    bench/vllm_decode.py FOLDER --moracle build/cpu/moracle

A turn starts an engine and times every number of sequences and length of prompt: tokens per second while all sequences decode.
A cell is the median of the turns. Greedy sampling, no detokenization in vLLM.
Needs the package moracle and vLLM 0.32 or 0.33. --engines vllm-eager: without torch.compile; vllm-one: engine and layers in
the process of the caller.
"""
import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

import serve_load

VOCABULARY = 30000


class Served:
    """`moracle serve` in a process of its own."""

    def __init__(self, options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [options.moracle, "serve", options.folder, "--port", str(port), "--cache-bytes", str(1 << 30), *options.serve_options],
            stdout=subprocess.DEVNULL)
        while not self._is_ready():
            time.sleep(0.1)

    def _is_ready(self):
        if self.process.poll() is not None:
            raise SystemExit("moracle serve ended")
        try:
            with urllib.request.urlopen(self.url + "/health") as reply:
                return json.load(reply)["ready"]
        except (urllib.error.URLError, ConnectionError):
            return False

    def rate(self, sequences, prompt, seconds):
        fields = {"temperature": 0}
        api = serve_load.Api(argparse.Namespace(url=self.url, prompt=prompt, tokens=1000, vocabulary=VOCABULARY, fields=fields,
                                                seed=1))
        return serve_load.steady(api, sequences, seconds)[0]

    def close(self):
        self.process.terminate()
        self.process.wait()


class Vllm:
    """vLLM's LLM class in a process of its own: this file with --worker."""

    def __init__(self, options):
        environment = os.environ | {"MORACLE_VLLM": "require", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        if options.engine == "vllm-one":
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        self.process = subprocess.Popen(
            [sys.executable, __file__, options.folder, "--worker", "--engines", options.engine], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answer()

    def _answer(self):
        for line in self.process.stdout:
            if line.startswith("answer "):
                return float(line.split()[1])
        raise SystemExit("vLLM ended")

    def rate(self, sequences, prompt, seconds):
        print(sequences, prompt, seconds, file=self.process.stdin, flush=True)
        return self._answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def steady(engine, sequences, prompt, seconds, draw):
    """Tokens per second of vLLM while all sequences decode."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    sampling = SamplingParams(max_tokens=1000, temperature=0, ignore_eos=True, detokenize=False,
                              output_kind=RequestOutputKind.DELTA)
    counts = dict.fromkeys((str(draw.random()) for _ in range(sequences)), 0)
    for name in counts:
        engine.add_request(name, {"prompt_token_ids": [draw.randrange(1000, VOCABULARY) for _ in range(prompt)]}, sampling)

    def step():
        for output in engine.step():
            counts[output.request_id] += len(output.outputs[0].token_ids)

    while min(counts.values()) < 3:
        step()
    begin, before = time.monotonic(), sum(counts.values())
    while time.monotonic() - begin < seconds:
        step()
    rate = (sum(counts.values()) - before) / (time.monotonic() - begin)
    engine.abort_request(list(counts))
    while engine.has_unfinished_requests():
        engine.step()
    return rate


def work(options):
    """The process of vLLM: reads "sequences prompt seconds", prints rates."""
    from vllm import LLM
    engine = LLM(model=options.folder, dtype="bfloat16", max_model_len=2048, max_num_seqs=8, skip_tokenizer_init=True,
                 enable_prefix_caching=False, enforce_eager="vllm-eager" in options.engines,
                 **({"distributed_executor_backend": "uni"} if "vllm-one" in options.engines else {})).llm_engine
    draw = random.Random(1)
    steady(engine, 8, 32, 1, draw)
    print("answer 0", flush=True)
    for line in sys.stdin:
        sequences, prompt, seconds = line.split()
        print("answer", steady(engine, int(sequences), int(prompt), float(seconds), draw), flush=True)


def start(engine, options):
    return (Served if engine == "serve" else Vllm)(argparse.Namespace(**vars(options), engine=engine))


def turns(cases, options):
    """Yields (engine, case, rate): engines in turns, each started anew, or all started first with --together."""
    if options.together:
        with contextlib.ExitStack() as stack:
            running = {engine: stack.enter_context(contextlib.closing(start(engine, options))) for engine in options.engines}
            for case in cases * options.rounds:
                for engine in options.engines:
                    yield engine, case, running[engine].rate(*case, options.seconds)
        return
    for engine in options.engines * options.rounds:
        with contextlib.closing(start(engine, options)) as running:
            for case in cases:
                yield engine, case, running.rate(*case, options.seconds)


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--moracle", default="moracle", help="the command")
    parser.add_argument("--serve-options", type=str.split, default=[], help="further options of moracle serve")
    parser.add_argument("--engines", type=lambda text: text.split(","), default=["serve", "vllm"],
                        help="of serve, vllm, vllm-eager and vllm-one; ratios are to the first")
    parser.add_argument("--sequences", type=numbers, default=[1, 8])
    parser.add_argument("--prompts", type=numbers, default=[32, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6, help="for each cell of a turn")
    parser.add_argument("--together", action="store_true",
                        help="start all engines first, which takes memory for each: then a turn is one cell")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    cases = [(sequences, prompt) for prompt in options.prompts for sequences in options.sequences]
    rates = {engine: {case: [] for case in cases} for engine in options.engines}
    for engine, case, rate in turns(cases, options):
        rates[engine][case].append(rate)
        print(f"{engine}, {case[0]} sequences, prompts of {case[1]}: {rate:.2f} tokens/s", file=sys.stderr, flush=True)
    print("| sequences, prompt | " + " | ".join(f"{engine}, tokens/s" for engine in options.engines) + " | ratio of each round |")
    print("| --- | " + "---: | " * (len(options.engines) + 1))
    for case in cases:
        first, *others = (rates[engine][case] for engine in options.engines)
        ratios = "; ".join(" ".join(f"{rate / base:.2f}" for rate, base in zip(other, first)) for other in others)
        medians = " | ".join(f"{statistics.median(values):.2f}" for values in (first, *others))
        print(f"| {case[0]}, {case[1]} | {medians} | {ratios} |")


if __name__ == "__main__":
    main()
