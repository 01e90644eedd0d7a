"""Times Moracle and its peers on the same layer, in turns. Method: bench/lab/peers_cpu.md."""

import argparse
import contextlib
import fcntl
import json
import math
import os
import sys

from .engines import PEERS, find_peer
from .install import install
from .peer import Absent
from .problem import Problem, find_shape
from .report import to_document, to_text
from .rounds import Clock, Entry
from .worker import Worker

WRONG = 0.5  # no format here loses this much: a larger nrmse is a bug


def parse(argv):
    parser = argparse.ArgumentParser(prog="./dev peers", description=__doc__)
    names = ",".join(peer.name for peer in PEERS)
    parser.add_argument("--shape", default="qwen3-30b-a3b", type=find_shape,
                        help="a name, or experts x hidden x intermediate x top_k")
    parser.add_argument("--tokens", default="1,4,16,64,256,1024")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--formats", default="", help="only formats whose name contains one of these")
    parser.add_argument("--bits", default="8,4,16", help="families by bits, in this order")
    parser.add_argument("--peers", default=names, help=f"of {names}")
    parser.add_argument("--seconds-per-cell", type=float, default=1.0, help="for each engine")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ring-megabytes", type=int, default=600,
                        help="weights of one engine, in total: larger than any cache")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--lock", metavar="FILE",
                        help="lock this file while a cell is timed, so that other measurements wait")
    parser.add_argument("--no-install", action="store_true",
                        help="use only installed packages; else missing ones come from PyPI")
    args = parser.parse_args(argv)
    args.tokens = sorted({int(text) for text in args.tokens.split(",")})
    args.peers = [find_peer(name) for name in args.peers.split(",")]
    if not any(peer.name == "moracle" for peer in args.peers):
        args.peers.insert(0, find_peer("moracle"))
    return args


def wanted(peers, text):
    """[(peer, format)] of the formats that the text selects, and of those that they are compared with."""
    every = [(peer, format_) for peer in peers for format_ in peer.formats()]
    named = [one for one in every if any(part in one[1].name for part in text.split(","))]
    beside = {format_.beside for _, format_ in named}
    return [one for one in every
            if one in named or one[0].name == "moracle" and one[1].name in beside]


@contextlib.contextmanager
def alone(path):
    """Holds a lock on this file, as flock(1) does, so that other measurements wait."""
    if not path:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def say(text):
    print(text, file=sys.stderr, flush=True)


def open_family(args, family, absent):
    """Starts a worker for each format with so many bits, and checks its output for each number of tokens."""
    entries = []
    for peer, format_ in wanted(args.peers, args.formats):
        if format_.family != family:
            continue
        try:
            entries.append(open_one(args, peer, format_))
        except Absent as reason:
            absent.append({"engine": peer.name, "format": format_.name, "reason": str(reason)})
            say(f"  absent: {reason}")
    return entries


def open_one(args, peer, format_):
    bytes_each = args.shape.num_experts * args.shape.weights_per_expert * format_.bits / 8
    num_layers = max(1, min(16, math.ceil(args.ring_megabytes * 1e6 / bytes_each)))
    say(f"making {peer.name} {format_.name}: {num_layers} x {bytes_each / 1e6:.0f} MB")
    worker = Worker("engine", (peer.name, format_.name, args.shape, num_layers, args.tokens[-1],
                               args.threads), peer.environment(args.threads))
    entry = Entry(peer.name, format_, worker, worker.about)
    entry.nrmse = {tokens: worker.call("check", tokens) for tokens in args.tokens}
    bad = {tokens: error for tokens, error in entry.nrmse.items() if not error < WRONG}
    if bad:
        worker.close()
        raise Absent(f"its output is wrong: nrmse by tokens {bad}")
    return entry


def best_peak(peaks, family):
    """The peak of int8 products, or of bf16 for 16 bits; else the largest peak."""
    kind = "bf16" if family == 16 else "int8"
    named = {n: v for n, v in peaks.items() if n.startswith(kind)} or peaks
    return max(named, key=named.get)


def main(argv):
    args = parse(argv)
    if not args.no_install:
        install(args.peers)
    with alone(args.lock):
        limits = Worker("limits", (args.threads,), {})
    absent, done, cells, clock = [], [], {}, Clock(limits)
    problem = Problem(args.shape)
    for family in map(int, args.bits.split(",")):
        entries = open_family(args, family, absent)
        peak = best_peak(limits.about, family)
        for tokens in args.tokens if entries else []:
            say(f"{family} bits, {tokens} tokens: {len(entries)} engines")
            with alone(args.lock):
                read, ops = clock.time_cell(
                    entries, tokens, args.seconds_per_cell, args.rounds, peak)
            cells[family, tokens] = {"read": read, "ops": ops, "peak": peak,
                                     "distinct": problem.batch(tokens).distinct}
        for entry in entries:
            entry.worker.close()
            if entry.gone:
                absent.append({"engine": entry.peer, "format": entry.format.name,
                               "reason": entry.gone})
        done += entries
    limits.close()
    document = to_document(done, cells, {
        "shape": args.shape, "threads": args.threads, "absent": absent,
        "versions": {e.peer: e.about["version"] for e in done if e.about["version"]},
        "notes": [{"engine": e.peer, "format": e.format.name, "note": e.about["note"]}
                  for e in done if e.about["note"]]})
    if args.json:
        with open(args.json, "w") as file:
            json.dump(document, file, indent=1)
    print(to_text(document))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Absent as reason:  # of the library itself
        sys.exit(f"peers: {reason}")
