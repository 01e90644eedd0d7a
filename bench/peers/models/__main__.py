"""Times whole models of Qwen3-30B-A3B's shape beside llama.cpp, on the same GGUF files, in turns.

The files have random weights and get distinct random tokens. A few layers are timed with a tiny vocabulary, and one
layer with the whole vocabulary: the difference from one of the few is the output layer. Both engines' times are
extrapolated to 48 layers from these two files. Every round loads both anew, since the bandwidth depends on where the
memory lies.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from . import gguf_file
from .llama import LlamaModel

ALL_LAYERS = 48
VOCABULARY, TINY_VOCABULARY = 151936, 512


def parse(argv):
    parser = argparse.ArgumentParser(prog="./dev peers --model", description=__doc__)
    parser.add_argument("--moracle", default="moracle", help="the command")
    parser.add_argument("--mixes", default="Q4_K_M,Q8_0,Q6_K,IQ4_XS",
                        help=f"of {','.join(gguf_file.MIXES)}")
    parser.add_argument("--batch", default="1,8", help="sequences")
    parser.add_argument("--context", default="128,4096", help="tokens in each cache of a decode step")
    parser.add_argument("--prompt", default="512,2048", help="tokens of a prompt")
    parser.add_argument("--layers", type=int, default=4, help="that are timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each cell of a round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kv-cache", default="f16", help="Moracle's; llama.cpp has f16")
    parser.add_argument("--activations", default="",
                        help="Moracle's, such as int8, which llama.cpp always has; default: as the file says")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--without", default="",
                        help="CPU features to hide from Moracle; LLAMA_CPP_LIB_PATH names a build of "
                             "llama.cpp without them")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args(argv)


def numbers(text):
    return [int(one) for one in text.split(",") if one]


class Files:
    """The two files of a mix, as (path, layers, vocabulary)."""

    def __init__(self, args, mix, folder):
        self.few = (pathlib.Path(folder) / f"{mix}-few.gguf", args.layers, TINY_VOCABULARY)
        self.one = (pathlib.Path(folder) / f"{mix}-one.gguf", 1, VOCABULARY)
        for file in (self.few, self.one):
            gguf_file.write(*file, gguf_file.MIXES[mix])

    def all_layers(self, seconds):
        """Seconds with all layers; `seconds` gives those of a file."""
        layer = seconds(*self.few) / self.few[1]
        return layer * ALL_LAYERS + max(0.0, seconds(*self.one) - layer)


class Moracle:
    def __init__(self, args):
        self.args = args

    def _bench(self, path, **options):
        args = self.args
        command = [args.moracle, "bench", "--model", str(path), "--json", "--seconds", str(args.seconds),
                   "--threads", str(args.threads), "--kv-cache", args.kv_cache, "--backend", args.backend]
        if args.without:
            command += ["--without", args.without]
        if args.activations:
            command += ["--activations", args.activations]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    def seconds(self, files, kind, tokens, batch):
        def decode(path, *_):
            return self._bench(path, context=tokens, batch=batch)["us_median"] / 1e6

        def prompt(path, *_):
            done = self._bench(path, context=16, batch=batch, prompt=tokens)
            return tokens * batch / done["prompt_tokens_per_second"]
        return {"moracle": files.all_layers(decode if kind == "decode" else prompt)}


class Llama:
    def __init__(self, args):
        self.args = args

    def seconds(self, files, kind, tokens, batch):
        """For each of llama.cpp's settings."""
        done = {}
        for flash in (False, True):
            def one(path, _, vocabulary):
                model = LlamaModel(path, vocabulary, self.args.threads)
                try:
                    if kind == "decode":
                        return statistics.median(model.decode_seconds(tokens, batch, flash, 15))
                    return statistics.median(model.prompt_seconds(tokens, batch, flash, 1))
                finally:
                    model.close()
            done[f"flash attention {'on' if flash else 'off'}"] = files.all_layers(one)
        return done


def cells_of(args):
    for batch in numbers(args.batch):
        for context in numbers(args.context):
            yield "decode", context, batch
        for tokens in numbers(args.prompt):
            yield "prompt", tokens, batch


def measure(args, mix, folder):
    """Tokens per second."""
    files, engines = Files(args, mix, folder), (Llama(args), Moracle(args))
    for kind, tokens, batch in cells_of(args):
        count = batch * (1 if kind == "decode" else tokens)
        rounds = []
        for _ in range(args.rounds):
            one = {}
            for engine in engines:
                for setting, seconds in engine.seconds(files, kind, tokens, batch).items():
                    one[setting] = count / seconds
            rounds.append(one)
        settings = [setting for setting in rounds[0] if setting != "moracle"]
        best = max(settings, key=lambda name: statistics.median(one[name] for one in rounds))
        ratios = sorted(one["moracle"] / one[best] for one in rounds)
        yield {"mix": mix, "kind": kind, "tokens": tokens, "batch": batch,
               "setting": best, "rounds": rounds, "ratios": ratios,
               "moracle": statistics.median(one["moracle"] for one in rounds),
               "llama": statistics.median(one[best] for one in rounds),
               "ratio": statistics.median(ratios)}


def line(cell):
    return (f"{cell['mix']:10}{cell['kind']:8}{cell['tokens']:6}{cell['batch']:4}"
            f"{cell['moracle']:10.1f}{cell['llama']:10.1f}{cell['ratio']:8.2f}"
            f"   {cell['ratios'][0]:.2f}-{cell['ratios'][-1]:.2f}  {cell['setting']}")


def main(argv):
    args = parse(argv)
    print(f"{'mix':10}{'':8}{'tokens':>6}{'seq':>4}{'Moracle':>10}{'llama.cpp':>10}{'ratio':>8}"
          "   spread; tokens per second, extrapolated to 48 layers", flush=True)
    done = []
    with tempfile.TemporaryDirectory() as folder:
        for mix in args.mixes.split(","):
            for cell in measure(args, mix, folder):
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
