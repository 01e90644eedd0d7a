"""Faults of ranks that run the command together: every other rank ends with an error that names the rank, within the
timeout. Usage: faults_test.py COMMAND MODEL [MPIRUN]"""
import json
import os
import pathlib
import shutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from started_ranks import expect, finish_ranks, free_port, start_mpi, start_rank, start_ranks, wait_until_connected

COMMAND, MODEL = sys.argv[1], sys.argv[2]
MPIRUN = sys.argv[3] if len(sys.argv) > 3 else None
TIMEOUT = 8  # seconds; ranks of a busy machine start at different times
ENDS_WITHIN = 40  # a busy machine


def command_of(model, size, timeout, arguments=()):
    return [COMMAND, "run", model, "--parallel", f"ep={size}", "--timeout", timeout, "--threads", "1", "--prompt-file", "-",
            "-n", "8", *arguments]


def start(models, arguments=(), timeout=TIMEOUT, output=None):
    """One process for each model. Rank 0 waits for its prompt."""
    return start_ranks([command_of(model, len(models), timeout, arguments) for model in models], output)


def finish(ranks, prompt="Once upon a time"):
    return finish_ranks(ranks, ENDS_WITHIN, prompt)


def changed_copy(folder, tensor, change):
    """A copy of the model in which change(bytes) makes the bytes of one tensor."""
    copy = pathlib.Path(folder) / "other"
    shutil.copytree(MODEL, copy)
    path = copy / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    begin, end = (8 + size + at for at in json.loads(data[8:8 + size])[tensor]["data_offsets"])
    data[begin:end] = change(data[begin:end])
    path.write_bytes(data)
    return copy


def with_another_bit(data):
    return bytes([data[0] ^ 1]) + data[1:]


def same_text_as_one_process():
    alone = subprocess.run([COMMAND, "run", MODEL, "-p", "Once upon a time", "-n", "8", "--deterministic", "--threads", "1",
                            "--json"], capture_output=True, text=True, timeout=ENDS_WITHIN)
    results = finish(start([MODEL] * 3, ["--deterministic", "--json"], 30))
    expect(all(code == 0 for code, _, _ in results), "a rank failed", results)
    expect(json.loads(results[0][1])["ids"] == json.loads(alone.stdout)["ids"], "other ids than one process", results)
    expect(results[1][1] == results[2][1] == "", "other ranks print", results)


def same_text_with_placement_by_load():
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "load.json"
        again = pathlib.Path(folder) / "again.json"
        alone = subprocess.run([COMMAND, "run", MODEL, "-p", "Once upon a time", "-n", "8", "--deterministic", "--threads",
                                "1", "--json", "--routing-statistics", file], capture_output=True, text=True,
                               timeout=ENDS_WITHIN)
        results = finish(start([MODEL] * 2, ["--deterministic", "--json", "--placement", str(file),
                                             "--routing-statistics", str(again)], 30))
        expect(all(code == 0 for code, _, _ in results), "a rank failed", results)
        expect(json.loads(results[0][1])["ids"] == json.loads(alone.stdout)["ids"], "other ids than one process", results)
        expect(again.read_text() == file.read_text(), "ranks count otherwise than one process", results)


def killed():
    ranks = start([MODEL] * 3)
    wait_until_connected(ranks, ENDS_WITHIN)
    ranks[2].send_signal(signal.SIGKILL)
    results = finish(ranks)
    for rank in (0, 1):
        expect(results[rank][0] != 0 and "rank 2" in results[rank][2], f"rank {rank} does not name rank 2", results)


def stopped():
    ranks = start([MODEL] * 3)
    wait_until_connected(ranks, ENDS_WITHIN)
    ranks[2].send_signal(signal.SIGSTOP)
    begin = time.time()
    try:
        results = finish(ranks[:2])
    finally:
        ranks[2].kill()
        ranks[2].communicate()
    expect(time.time() - begin < ENDS_WITHIN, "it took too long", results)
    for rank in (0, 1):
        expect(results[rank][0] != 0 and "rank 2" in results[rank][2], f"rank {rank} does not name rank 2", results)


def another_checkpoint():
    """One bit in a tensor that every rank reads, outside the blocks that ranks sample."""
    with tempfile.TemporaryDirectory() as folder:
        copy = changed_copy(folder, "model.embed_tokens.weight", with_another_bit)
        results = finish(start([MODEL, copy, MODEL], timeout=20))
    for code, out, err in results:
        expect(code != 0 and "rank 1: needs weights that every rank reads" in err and out == "", "rank 1 is not named",
               results)


def other_experts_on_one_rank():
    """Expert 15 of 16 is on rank 2 of 3: no other rank reads it."""
    tensor = "model.layers.1.mlp.experts.15.down_proj.qweight"
    with tempfile.TemporaryDirectory() as folder:
        copy = changed_copy(folder, tensor, lambda data: data[::-1])
        results = finish(start([MODEL, MODEL, copy], timeout=20))
    for code, out, err in results:
        expect(code != 0 and "rank 2: needs samples of all weights as on the other ranks" in err and out == "",
               "rank 2 is not named", results)


def full_disk():
    """Rank 0 writes the statistics; the error names it and the file. Needs the right to mount."""
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", folder], capture_output=True).returncode != 0:
            print("full_disk: skipped, this user may not mount a file system")
            return
        try:
            with open(f"{folder}/filler", "wb", buffering=0) as filler:
                try:
                    while filler.write(bytes(4096)):
                        pass
                except OSError:
                    pass
            results = finish(start([MODEL] * 2, ["--routing-statistics", f"{folder}/load.json"], 20))
        finally:
            subprocess.run(["umount", folder], check=True)
    code, _, err = results[0]
    expect(code == 1 and "rank 0: " in err and f"{folder}/load.json" in err and "No space left on device" in err,
           "rank 0 does not name the file", results)


def full_output():
    """Rank 0 cannot print: it says so, and the others end."""
    ranks = start([MODEL] * 2, timeout=20, output="/dev/full")
    results = finish(ranks)
    code, _, err = results[0]
    expect(code == 1 and "rank 0: standard output: needs to accept the whole output" in err, "rank 0 does not say why",
           results)


def connected(port):
    deadline = time.time() + ENDS_WITHIN
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            expect(time.time() < deadline, "rank 0 does not listen", port)
            time.sleep(0.01)


def strangers_while_ranks_meet():
    """Each connection stays open, so that one that delays rank 1 ends the job by its timeout."""
    port = free_port()
    first = start_rank(command_of(MODEL, 2, 30), 0, 2, port)
    connected(port).close()
    opened = [connected(port) for _ in range(5)]
    opened[1].sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    opened[2].sendall(bytes(range(256)) * 16)
    opened[3].sendall(b"2elcarom")  # how a hello begins
    try:
        socket.create_connection(("127.0.0.2", port)).close()
        expect(False, "rank 0 listens at another address than MASTER_ADDR", port)
    except ConnectionRefusedError:
        pass
    results = finish([first, start_rank(command_of(MODEL, 2, 30), 1, 2, port)])
    expect(all(code == 0 for code, _, _ in results) and results[0][1], "a stranger ends the job", results)


def secrets():
    def outcome(of_0, of_1, timeout):
        port = free_port()
        results = finish([start_rank(command_of(MODEL, 2, timeout), rank, 2, port,
                                     **({} if secret is None else {"MORACLE_JOB_SECRET": secret}))
                          for rank, secret in enumerate((of_0, of_1))])
        expect(not any("of this job" in err for _, _, err in results), "a message has the secret", results)
        return results

    own, other = "a secret of this job", "another one of this job"
    results = outcome(own, own, 30)
    expect(all(code == 0 for code, _, _ in results) and results[0][1], "ranks with one secret do not work", results)
    none, here = "the connecting rank has no secret", "the connecting rank has a secret, the other has none"
    for of_0, of_1, said_by_0, said_by_1 in ((own, other, "another secret", "their secrets differ"), (own, None, none, none),
                                             (None, own, here, here)):
        results = outcome(of_0, of_1, TIMEOUT)
        expect(results[1][0] == 2 and said_by_1 in results[1][2], "rank 1 does not say why", results)
        expect(results[0][0] != 0 and "rank 1" in results[0][2] and said_by_0 in results[0][2], "rank 0 does not say why",
               results)
    for secret in ("", "short"):
        results = outcome(secret, secret, TIMEOUT)
        expect(all(code == 2 and "at least 16 bytes" in err for code, _, err in results), "it is accepted", results)


def forward_with_a_changed_byte(listener, port, which, at):
    """Passes one connection on; `which` 0: changes a byte to rank 0, 1: to rank 1."""
    left, right = listener.accept()[0], connected(port)
    passed = 0
    with left, right:
        while True:
            for source in select.select([left, right], [], [], ENDS_WITHIN)[0]:
                try:
                    data = bytearray(source.recv(65536))
                    if not data:
                        return
                    if (source is right) == (which == 1):
                        if passed <= at < passed + len(data):
                            data[at - passed] ^= 0xff
                        passed += len(data)
                    (left if source is right else right).sendall(data)
                except OSError:
                    return


def changed_byte():
    for variables in ({}, {"MORACLE_JOB_SECRET": "a secret of this job"}):
        for which in (0, 1):
            port = free_port()
            with socket.create_server(("127.0.0.1", 0)) as listener:
                proxy = threading.Thread(target=forward_with_a_changed_byte, args=(listener, port, which, 5000), daemon=True)
                proxy.start()
                results = finish([start_rank(command_of(MODEL, 2, 20), 0, 2, port, **variables),
                                  start_rank(command_of(MODEL, 2, 20), 1, 2, listener.getsockname()[1], **variables)])
                proxy.join()
            expect(all(code != 0 and out == "" for code, out, _ in results), "a changed byte is taken", results)
            named = f"rank {1 - which}: needs messages that arrive unchanged"
            expect(all(named in err for _, _, err in results), f"{named} is not said", results)


def no_checkpoint():
    results = finish(start([MODEL, "/nowhere"], timeout=20))
    expect("/nowhere" in results[1][2], "rank 1 does not say why", results)
    expect(results[0][0] != 0 and "rank 1" in results[0][2], "rank 0 does not name rank 1", results)


def another_size():
    def refusal(**variables):
        done = subprocess.run([COMMAND, "run", MODEL, "-p", "a", "--parallel", "ep=2"], env=dict(os.environ, **variables),
                              capture_output=True, text=True)
        expect(done.returncode == 2, "it is accepted", done)
        return done.stderr

    for rank, size in (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
                       ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        text = refusal(**{rank: "0", size: "3"})
        expect("the launcher started 3" in text, f"{size} is not read", text)
    expect("mpirun -n 2" in refusal(), "a process alone is accepted", "")
    expect("a whole number" in refusal(RANK="zero", WORLD_SIZE="2"), "a rank that is no number is accepted", "")


def refused_with_a_reason():
    for arguments, reason in ((["run", MODEL, "--parallel", "ep=2"], "a conversation runs in one process"),
                              (["run", MODEL, "-p", "a", "--parallel", "tp=2"], "needs ep=N, the number of ranks"),
                              (["run", MODEL, "-p", "a", "--parallel", "ep=0"], "1 to 4096"),
                              (["serve", "--model-shape", "any", "--parallel", "ep=2"], "random weights"),
                              (["bench", "--parallel", "ep=2"], "this process is alone")):
        done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        expect(done.returncode == 2 and reason in done.stderr, f"{arguments} is accepted", done)


def plan_without_ranks():
    done = subprocess.run([COMMAND, "explain", MODEL, "--parallel", "ep=3", "--placement", "round-robin", "--json"],
                          capture_output=True, text=True)
    plan = json.loads(done.stdout)["parallel"]
    expect(plan["ep"] == 3 and plan["chosen"] == "host" and plan["placement"] == "round-robin", "another plan", done)
    expect(any(row["reasons"] for row in plan["considered"]), "no reason against any exchange", done)


def mpi_job():
    job = start_mpi(MPIRUN, 3, [COMMAND, "run", MODEL, "--parallel", "ep=3", "--timeout", TIMEOUT, "--threads", "1",
                                "--prompt-file", "-", "-n", "4"])
    deadline = time.time() + ENDS_WITHIN
    while time.time() < deadline:
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if f"PPid:\t{job.pid}\n" not in (entry / "status").read_text():
                    continue
                if b"OMPI_COMM_WORLD_RANK=2\0" in (entry / "environ").read_bytes():
                    time.sleep(2)  # usually past MPI_Init
                    return job, int(entry.name)
            except OSError:
                continue
        time.sleep(0.05)
    sys.exit("rank 2 did not start")


def mpi_fault(fault):
    job, pid = mpi_job()
    os.kill(pid, fault)
    out, err = job.communicate("Once upon a time", timeout=ENDS_WITHIN)
    named = "rank 2" in err or "all ranks to start" in err  # during MPI_Init no rank is known
    expect(job.returncode != 0 and named and out == "", f"signal {fault}: rank 2 is not named", (out, err))


def mpi_stopped():
    mpi_fault(signal.SIGSTOP)


def mpi_killed():
    mpi_fault(signal.SIGKILL)


CASES = [same_text_as_one_process, same_text_with_placement_by_load, killed, stopped, another_checkpoint,
         other_experts_on_one_rank, full_disk, full_output, strangers_while_ranks_meet, secrets, changed_byte, no_checkpoint, another_size, refused_with_a_reason, plan_without_ranks]
if MPIRUN:
    CASES += [mpi_stopped, mpi_killed]
for case in CASES:
    case()
    print(case.__name__, "passed", flush=True)
