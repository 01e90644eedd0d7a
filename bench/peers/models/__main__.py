"""Times whole models of Qwen3-30B-A3B's shape beside llama.cpp, in turns.

Both get random weights and distinct random tokens, a few layers are timed, and their times are extrapolated to 48.
Moracle measures its parts. llama.cpp is timed with a few layers and a tiny vocabulary, and once more
with one layer and the whole vocabulary: the difference from one of the few is its output layer.
Every round loads both anew, since the bandwidth depends on where the memory lies.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import gguf

from . import gguf_file
from .llama import LlamaModel

ALL_LAYERS = 48
VOCABULARY, TINY_VOCABULARY = 151936, 512
KINDS = gguf.GGMLQuantizationType
# Moracle's scheme, its options, llama.cpp's format and that of its output layer
PAIRS = {
    "int4-w4a8-g128": ([], KINDS.Q4_0, KINDS.Q6_K),
    "int8-w8a8": ([], KINDS.Q8_0, KINDS.Q8_0),
    "int4-w4a16-g128": (["--activations", "bf16"], KINDS.Q4_0, KINDS.Q6_K),
    "bf16": (["--activations", "bf16"], KINDS.BF16, KINDS.BF16),
}


def parse(argv):
    parser = argparse.ArgumentParser(prog="./dev peers --model", description=__doc__)
    parser.add_argument("--moracle", default="moracle", help="the command")
    parser.add_argument("--schemes", default=",".join(PAIRS), help=f"of {','.join(PAIRS)}")
    parser.add_argument("--batch", default="1,8", help="sequences")
    parser.add_argument("--context", default="128,4096", help="tokens in each cache of a decode step")
    parser.add_argument("--prompt", default="512,2048", help="tokens of a prompt")
    parser.add_argument("--layers", type=int, default=4, help="that are timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each cell of a round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kv-cache", default="f16", help="Moracle's; llama.cpp has f16")
    parser.add_argument("--output-scheme", default="bf16", help="of Moracle's output layer")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--without", default="",
                        help="CPU features to hide from Moracle; LLAMA_CPP_LIB_PATH names a build of "
                             "llama.cpp without them")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args(argv)


def numbers(text):
    return [int(one) for one in text.split(",") if one]


class Moracle:
    def __init__(self, args, scheme):
        self.args, self.scheme = args, scheme

    def _bench(self, **options):
        command = [self.args.moracle, "bench", "--model-shape", "qwen3-30b-a3b", "--scheme",
                   self.scheme, "--json", "--seconds", str(self.args.seconds), "--threads",
                   str(self.args.threads), "--kv-cache", self.args.kv_cache, "--output-scheme",
                   self.args.output_scheme, "--backend", self.args.backend, "--layers",
                   str(self.args.layers), *PAIRS[self.scheme][0]]
        if self.args.without:
            command += ["--without", self.args.without]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def decode(self, context, batch):
        return self._bench(context=context, batch=batch)["tokens_per_second_all_layers"]

    def prompt(self, tokens, batch):
        return self._bench(context=16, batch=batch,
                           prompt=tokens)["prompt_tokens_per_second_all_layers"]


class Llama:
    def __init__(self, args, scheme, folder):
        self.args, self.files = args, []
        for layers, vocabulary in ((args.layers, TINY_VOCABULARY), (1, VOCABULARY)):
            path = pathlib.Path(folder) / f"{scheme}-{layers}-{vocabulary}.gguf"
            gguf_file.write(path, layers, vocabulary, *PAIRS[scheme][1:])
            self.files.append((path, layers, vocabulary))

    def _seconds(self, run):
        """For each setting, the extrapolated seconds of all layers; `run` gets a model and a setting."""
        layer = {}
        for path, layers, vocabulary in self.files:
            model = LlamaModel(path, vocabulary, self.args.threads)
            for flash in (False, True):
                seconds = statistics.median(run(model, flash))
                if vocabulary == TINY_VOCABULARY:
                    layer[flash] = seconds / layers
                else:
                    output = max(0.0, seconds - layer[flash])
                    layer[flash] = layer[flash] * ALL_LAYERS + output
            model.close()
        return {f"flash attention {'on' if flash else 'off'}": seconds
                for flash, seconds in layer.items()}

    def decode(self, context, batch):
        done = self._seconds(lambda model, flash: model.decode_seconds(context, batch, flash, 15))
        return {name: batch / seconds for name, seconds in done.items()}

    def prompt(self, tokens, batch):
        done = self._seconds(lambda model, flash: model.prompt_seconds(tokens, batch, flash, 1))
        return {name: tokens * batch / seconds for name, seconds in done.items()}


def cells_of(args):
    for batch in numbers(args.batch):
        for context in numbers(args.context):
            yield "decode", context, batch
        for tokens in numbers(args.prompt):
            yield "prompt", tokens, batch


def measure(args, scheme, folder):
    ours, theirs = Moracle(args, scheme), Llama(args, scheme, folder)
    for kind, tokens, batch in cells_of(args):
        rounds = []
        for _ in range(args.rounds):
            one = getattr(theirs, kind)(tokens, batch)
            settings = list(one)
            one["moracle"] = getattr(ours, kind)(tokens, batch)
            rounds.append(one)
        best = max(settings, key=lambda name: statistics.median(one[name] for one in rounds))
        ratios = sorted(one["moracle"] / one[best] for one in rounds)
        yield {"scheme": scheme, "kind": kind, "tokens": tokens, "batch": batch,
               "setting": best, "rounds": rounds, "ratios": ratios,
               "moracle": statistics.median(one["moracle"] for one in rounds),
               "llama": statistics.median(one[best] for one in rounds),
               "ratio": statistics.median(ratios)}


def line(cell):
    return (f"{cell['scheme']:18}{cell['kind']:8}{cell['tokens']:6}{cell['batch']:4}"
            f"{cell['moracle']:10.1f}{cell['llama']:10.1f}{cell['ratio']:8.2f}"
            f"   {cell['ratios'][0]:.2f}-{cell['ratios'][-1]:.2f}  {cell['setting']}")


def main(argv):
    args = parse(argv)
    print(f"{'scheme':18}{'':8}{'tokens':>6}{'seq':>4}{'Moracle':>10}{'llama.cpp':>10}{'ratio':>8}"
          "   spread; tokens per second, extrapolated to 48 layers", flush=True)
    done = []
    with tempfile.TemporaryDirectory() as folder:
        for scheme in args.schemes.split(","):
            for cell in measure(args, scheme, folder):
                done.append(cell)
                print(line(cell), flush=True)
            for file in pathlib.Path(folder).iterdir():
                file.unlink()
    for kind in ("decode", "prompt"):
        ratios = [cell["ratio"] for cell in done if cell["kind"] == kind]
        if ratios:
            print(f"geometric mean of {kind}: {statistics.geometric_mean(ratios):.2f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"threads": args.threads, "cells": done}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
