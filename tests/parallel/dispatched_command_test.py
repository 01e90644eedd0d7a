"""The command on ranks that have sequences of their own, and on ranks that divide attention. Usage: dispatched_command_test.py COMMAND MODEL TEXT"""
import json
import os
import socket
import subprocess
import sys

COMMAND, MODEL, TEXT = sys.argv[1:4]
ENDS_WITHIN = 120  # a busy machine


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def on_ranks(size, arguments):
    """Exit code, output and errors of each rank."""
    port, ranks = free_port(), []
    for rank in range(size):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([COMMAND, *arguments, "--threads", "1"], env=env, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    results = []
    for rank in ranks:
        out, err = rank.communicate(timeout=ENDS_WITHIN)
        results.append((rank.returncode, out, err))
    return results


def expect(condition, what, results):
    if not condition:
        sys.exit(f"{what}\n{results}")


def check_perplexity():
    """1,500 tokens are 3 windows: on 2 ranks the second has fewer, on 4 the last has none."""
    arguments = ["perplexity", MODEL, "--text", TEXT, "--max-tokens", "1500", "--deterministic", "--json"]
    alone = json.loads(subprocess.run([COMMAND, *arguments, "--threads", "1"], check=True, capture_output=True,
                                      text=True).stdout)
    for size in (2, 4):
        results = on_ranks(size, [*arguments, "--parallel", f"ep={size},mode=dispatched"])
        expect(all(code == 0 for code, _, _ in results), "a rank failed", results)
        expect(all(out == "" for _, out, _ in results[1:]), "a rank other than 0 prints", results)
        expect(json.loads(results[0][1]) == alone, f"{size} ranks differ from {alone}", results)


def check_bench():
    results = on_ranks(2, ["bench", "--model-shape", "qwen3-30b-a3b", "--scheme", "int4-w4a16-g128", "--layers", "1",
                           "--context", "8", "--batch", "1", "--seconds", "0.01", "--json", "--parallel",
                           "ep=2,mode=dispatched"])
    expect(all(code == 0 for code, _, _ in results), "a rank failed", results)
    answer = json.loads(results[0][1])
    expect(answer["parallel"] == "ep=2,mode=dispatched", "the mode is not shown", results)
    expect(answer["us_median"] > 0, "no time", results)


def check_divided_attention():
    arguments = ["perplexity", MODEL, "--text", TEXT, "--max-tokens", "600", "--json"]
    alone = json.loads(subprocess.run([COMMAND, *arguments, "--threads", "1"], check=True, capture_output=True,
                                      text=True).stdout)
    results = on_ranks(2, [*arguments, "--parallel", "ep=2,tp=2"])
    expect(all(code == 0 for code, _, _ in results), "a rank failed", results)
    answer = json.loads(results[0][1])
    expect(abs(answer["nll"] / alone["nll"] - 1) < 1e-5, f"not as {alone}", results)


def check_other_modes_are_named():
    """Ranks that spread their tokens in different ways end with the difference."""
    port, ranks = free_port(), []
    for rank, mode in enumerate(("replicated", "dispatched")):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port))
        ranks.append(subprocess.Popen(
            [COMMAND, "perplexity", MODEL, "--text", TEXT, "--max-tokens", "50", "--parallel", f"ep=2,mode={mode}"],
            env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    errors = [rank.communicate(timeout=ENDS_WITHIN)[1] for rank in ranks]
    expect("needs options as on the other ranks" in errors[0] and "dispatched" in errors[0], "not named", errors)


check_perplexity()
check_bench()
check_divided_attention()
check_other_modes_are_named()
