"""The command on ranks that have sequences of their own, and on ranks that divide attention.
Usage: dispatched_command_test.py COMMAND MODEL TEXT [MPIRUN]"""
import json
import subprocess
import sys
import tempfile

from started_ranks import expect, finish_ranks, start_mpi, start_ranks

COMMAND, MODEL, TEXT = sys.argv[1:4]
MPIRUN = sys.argv[4] if len(sys.argv) > 4 else None
ENDS_WITHIN = 120  # a busy machine


def on_ranks(size, arguments):
    """Exit code, output and errors of each rank."""
    return finish_ranks(start_ranks([[COMMAND, *arguments, "--threads", "1"]] * size), ENDS_WITHIN)


def under_mpirun(size, arguments):
    """What rank 0 prints."""
    job = start_mpi(MPIRUN, size, [COMMAND, *arguments, "--threads", "1", "--transport", "mpi"])
    out, err = job.communicate(timeout=ENDS_WITHIN)
    expect(job.returncode == 0, "a rank failed", err)
    return out


def check_perplexity():
    """1,500 tokens are 3 windows: on 2 ranks the second has fewer, on 4 the last has none."""
    arguments = ["perplexity", MODEL, "--text", TEXT, "--max-tokens", "1500", "--deterministic", "--json"]
    alone = json.loads(subprocess.run([COMMAND, *arguments, "--threads", "1"], check=True, capture_output=True,
                                      text=True).stdout)
    for size in (2, 4):
        spread = ["--parallel", f"ep={size},mode=dispatched"]
        results = on_ranks(size, [*arguments, *spread])
        expect(all(code == 0 for code, _, _ in results), "a rank failed", results)
        expect(all(out == "" for _, out, _ in results[1:]), "a rank other than 0 prints", results)
        expect(json.loads(results[0][1]) == alone, f"{size} ranks differ from {alone}", results)
        if MPIRUN:
            out = under_mpirun(size, [*arguments, *spread])
            expect(json.loads(out) == alone, f"{size} ranks under mpirun differ from {alone}", out)


PROMPTS = ["Once upon a time", "And the LORD spake unto Moses, saying,", "In the beginning", "Blessed are", "And it came"]


def check_run():
    """5 prompts: ranks have unequal numbers of them, and on 6 ranks the last has none."""
    arguments = ["run", MODEL, "-n", "12", "--temperature", "0.8", "--seed", "3", "--deterministic", "--json"]
    alone = []
    for prompt in PROMPTS:
        one = json.loads(subprocess.run([COMMAND, *arguments, "-p", prompt, "--threads", "1"], check=True,
                                        capture_output=True, text=True).stdout)
        alone.append({key: one[key] for key in ("prompt_ids", "ids", "text", "stop_reason")})
    several = [word for prompt in PROMPTS for word in ("-p", prompt)]
    for spread in ([], ["--parallel", "ep=2"], ["--parallel", "ep=2,mode=dispatched"], ["--parallel", "ep=6,mode=dispatched"]):
        size = int(spread[1][3]) if spread else 1
        results = on_ranks(size, [*arguments, *several, *spread])
        expect(all(code == 0 for code, _, _ in results), "a rank failed", results)
        expect(all(out == "" for _, out, _ in results[1:]), "a rank other than 0 prints", results)
        expect(json.loads(results[0][1])["answers"] == alone, f"{spread} differs from one process", (results, alone))
    if MPIRUN:
        out = under_mpirun(3, [*arguments, *several, "--parallel", "ep=3,mode=dispatched"])
        expect(json.loads(out)["answers"] == alone, "mpirun differs from one process", out)


def check_run_ends_where_one_rank_fails():
    """A prompt that is longer than the context: its rank says so, and the other ends."""
    too_long = "word " * 20000
    results = on_ranks(2, ["run", MODEL, "-p", "Once upon a time", "-p", too_long, "-n", "400", "--parallel",
                           "ep=2,mode=dispatched"])
    expect(results[1][0] == 2 and "rank 1: --prompt: needs fewer tokens" in results[1][2], "rank 1 does not say why", results)
    expect(results[0][0] != 0 and "rank 1" in results[0][2], "rank 0 does not name rank 1", results)


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
    if MPIRUN:
        out = under_mpirun(2, [*arguments, "--parallel", "ep=2,tp=2"])
        expect(json.loads(out) == answer, f"mpirun differs from sockets: {answer}", out)


def check_divided_output_and_copies():
    """Ranks that divide lm_head and hold copies of hot experts have the bits of one process."""
    text = ["perplexity", MODEL, "--text", TEXT, "--max-tokens", "1100", "--deterministic", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        load = f"{folder}/load.json"
        alone = json.loads(subprocess.run([COMMAND, *text, "--threads", "1", "--routing-statistics", load], check=True,
                                          capture_output=True, text=True).stdout)
        copies = ["--placement", load, "--redundant-experts", "2"]
        for spread in (["--parallel", "ep=2,lm_head=2"], ["--parallel", "ep=3,lm_head=3", *copies],
                       ["--parallel", "ep=2,mode=dispatched", *copies]):
            results = on_ranks(int(spread[1][3]), [*text, *spread])
            expect(all(code == 0 for code, _, _ in results), "a rank failed", results)
            answer = json.loads(results[0][1])
            expect(all(answer[key] == alone[key] for key in ("nll", "perplexity")), f"{spread} differs from {alone}", results)
    run = ["run", MODEL, "-p", PROMPTS[0], "-n", "12", "--deterministic", "--json"]
    for sampling in (["--temperature", "0"], ["--temperature", "0.8", "--top-k", "9"], ["--temperature", "0.8", "--top-k", "0"]):
        alone = json.loads(subprocess.run([COMMAND, *run, *sampling, "--threads", "1"], check=True, capture_output=True,
                                          text=True).stdout)
        results = on_ranks(2, [*run, *sampling, "--parallel", "ep=2,lm_head=2"])
        expect(all(code == 0 for code, _, _ in results), "a rank failed", results)
        expect(json.loads(results[0][1])["ids"] == alone["ids"], f"{sampling} differs from {alone}", results)


def check_other_modes_are_named():
    """Ranks that spread their tokens in different ways end with the difference."""
    arguments = ["perplexity", MODEL, "--text", TEXT, "--max-tokens", "50"]
    ranks = start_ranks([[COMMAND, *arguments, "--parallel", f"ep=2,mode={mode}"] for mode in ("replicated", "dispatched")])
    errors = [err for _, _, err in finish_ranks(ranks, ENDS_WITHIN)]
    expect("needs options as on the other ranks" in errors[0] and "dispatched" in errors[0], "not named", errors)


check_perplexity()
check_run()
check_run_ends_where_one_rank_fails()
check_bench()
check_divided_attention()
check_divided_output_and_copies()
check_other_modes_are_named()
