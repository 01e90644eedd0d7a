"""End-to-end tests of `moracle serve --parallel ep=2`: ranks_test.py COMMAND MODEL tcp|mpi [MPIRUN]."""
import concurrent.futures
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from client import Server, skip_without_server
from server_test import write_adapter

COMMAND, MODEL, MPIRUN = "", "", None
PROMPT = "And the LORD spake unto Moses, saying,"
SHARED = PROMPT + " Speak unto the children of Israel, and say unto them, When ye be come into the land" * 12
STARTS_WITHIN, ENDS_WITHIN = 180, 60  # generous, for busy machines


def text_of_run(model, prompt, *options):
    """The text of a single process."""
    ran = subprocess.run([COMMAND, "run", model, "-p", prompt, "--deterministic", "--threads", "1", "--json", *options],
                         capture_output=True, check=True, text=True, timeout=STARTS_WITHIN)
    return json.loads(ran.stdout)["text"]


reserved = []


def free_port():
    """Keeps the port bound, so that the system assigns it to no other socket. With SO_REUSEADDR rank 0 can listen on it."""
    reserved.append(socket.socket())
    reserved[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved[-1].bind(("127.0.0.1", 0))
    return reserved[-1].getsockname()[1]


def child_with_rank(parent, rank):
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"PPid:\t{parent}\n" in (entry / "status").read_text() and \
                    f"OMPI_COMM_WORLD_RANK={rank}\0".encode() in (entry / "environ").read_bytes():
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError(f"no process of rank {rank}")


class Ranks(Server):
    """Ranks over sockets or under mpirun. `models`: model folder per rank (sockets only)."""

    def __init__(self, *options, models=None, parallel="ep=2"):
        size = int(parallel.split(",")[0][3:])
        models = models or [MODEL] * size
        self.errors = tempfile.TemporaryFile("w+")
        self.code, self.others, self.pids = None, [], []
        arguments = ["--parallel", parallel, "--port", "0", "--threads", "1", "--deterministic", "--name", "model", *options]
        if MPIRUN:
            env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
            self.process = subprocess.Popen([MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(size), COMMAND, "serve",
                                             models[0], *arguments],
                                            env=env, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        else:
            port, processes = free_port(), []
            for rank in range(size):
                env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(port))
                processes.append(subprocess.Popen([COMMAND, "serve", models[rank], *arguments], env=env, text=True,
                                                  stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                                                  stderr=self.errors if rank == 0 else subprocess.DEVNULL))
            self.process, self.others = processes[0], processes[1:]
        # Wait for the port, the exit of rank 0, or the timeout of a hanging launcher.
        there, _, _ = select.select([self.process.stdout], [], [], STARTS_WITHIN)
        line = self.process.stdout.readline() if there else f"nothing within {STARTS_WITHIN} s. "
        if not line.startswith("listening on http://127.0.0.1:"):
            if there:
                self.process.wait(timeout=ENDS_WITHIN)
            error = f"the server does not start: {line}{self.error_text()}"
            self.kill()
            raise RuntimeError(error)
        self.port = int(line.rsplit(":", 1)[1])
        self.pids = [child_with_rank(self.process.pid, r) for r in range(size)] if MPIRUN else \
            [self.process.pid, *(other.pid for other in self.others)]

    def error_text(self):
        self.errors.seek(0)
        return self.errors.read()

    def wait(self):
        """Exit codes of rank 0, or mpirun, and of the other ranks."""
        self.code = self.process.wait(timeout=ENDS_WITHIN)
        return [self.code, *(other.wait(timeout=ENDS_WITHIN) for other in self.others)]

    def end(self, how=signal.SIGTERM):
        if self.code is None:
            os.kill(self.pids[0], how)
            codes = self.wait()
            assert codes == [0] * len(codes), (codes, self.error_text())
        self.process.stdout.close()
        self.errors.close()
        return self.code

    def kill(self):
        for process in (self.process, *self.others):
            if process.poll() is None:
                process.kill()
                process.wait()
        for pid in self.pids:  # stopped ranks that mpirun left behind
            if MPIRUN and os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGKILL)
        self.process.stdout.close()
        self.errors.close()


def changed(folder, to):
    """A copy of the model with a changed norm (read by all ranks) and changed experts (each read by its rank)."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    path = pathlib.Path(to) / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    for name, tensor in json.loads(data[8:8 + size]).items():
        if name == "model.norm.weight":
            width = 4 if tensor["dtype"] == "F32" else 2
        elif ".experts." in name and name.endswith(".qweight"):
            width = 1
        else:
            continue
        begin, end = (8 + size + offset for offset in tensor["data_offsets"])
        values = [data[at:at + width] for at in range(begin, end, width)]
        data[begin:end] = b"".join(reversed(values))
    path.write_bytes(data)


class Texts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Ranks()

    @classmethod
    def tearDownClass(cls):
        cls.server.end()

    def test_texts_equal_one_process_alone_and_batched(self):
        options = ("--seed", "7", "-n", "24", "--temperature", "0.9", "--top-p", "0.95")
        expected = text_of_run(MODEL, PROMPT, *options)
        fields = {"seed": 7, "max_tokens": 24, "temperature": 0.9, "top_p": 0.95}
        self.assertEqual(self.server.complete(PROMPT, **fields)["choices"][0]["text"], expected)

        def one(i):
            if i % 3 == 0:
                return self.server.complete(PROMPT, **fields)["choices"][0]["text"]
            self.server.complete(PROMPT + " word" * i, max_tokens=5 + i, seed=i, temperature=1)
            return expected

        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            self.assertEqual(set(threads.map(one, range(16))), {expected})

    def test_shared_prefix_is_computed_once(self):
        for end in (" bread", " wine"):
            expected = text_of_run(MODEL, SHARED + end, "-n", "12", "--temperature", "0")
            for _ in range(2):
                reply = self.server.complete(SHARED + end, max_tokens=12, temperature=0)
                self.assertEqual(reply["choices"][0]["text"], expected)
        self.assertGreater(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_prompt_scores_and_several_choices(self):
        fields = {"max_tokens": 6, "temperature": 1, "n": 3, "seed": 4, "logprobs": 2, "echo": True}
        first = self.server.complete(PROMPT, **fields)["choices"]
        self.assertEqual(len({choice["text"] for choice in first}), 3)
        self.assertEqual(self.server.complete(PROMPT, **fields)["choices"], first)

    def test_disconnected_clients_do_not_affect_others(self):
        for event in self.server.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True}):
            break
        self.assertEqual(self.server.request("GET", "/health")[0], 200)


class DividedOutput(Texts):
    """Tensor-parallel lm_head: each rank computes half of the logits, rank 0 samples."""

    @classmethod
    def setUpClass(cls):
        cls.server = Ranks(parallel="ep=2,lm_head=2")


class Dispatched(unittest.TestCase):
    """Data-parallel attention: rank 0 assigns sequences to ranks, and samples."""

    @classmethod
    def setUpClass(cls):
        cls.server = Ranks(parallel="ep=2,mode=dispatched")

    @classmethod
    def tearDownClass(cls):
        cls.server.end()

    def test_texts_equal_one_process_alone_and_batched(self):
        asked = [("-n", "24", "--temperature", "0"), ("--seed", "7", "-n", "24", "--temperature", "0.9", "--top-p", "0.95")]
        fields = [{"max_tokens": 24, "temperature": 0}, {"seed": 7, "max_tokens": 24, "temperature": 0.9, "top_p": 0.95}]
        prompts = [PROMPT, SHARED + " bread"]
        expected = {(p, f): text_of_run(MODEL, prompts[p], *asked[f]) for p in (0, 1) for f in (0, 1)}

        def one(i):
            p, f = i % 2, i // 2 % 2
            if i % 3 == 0:  # other requests with different lengths
                self.server.complete(PROMPT + " word" * i, max_tokens=3 + i, seed=i, temperature=1)
            return self.server.complete(prompts[p], **fields[f])["choices"][0]["text"] == expected[p, f]

        self.assertTrue(one(0))  # one sequence: rank 1 has no tokens
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            self.assertTrue(all(threads.map(one, range(16))))

    def test_prompt_scores_and_several_choices(self):
        fields = {"max_tokens": 6, "temperature": 1, "n": 3, "seed": 4, "logprobs": 2, "echo": True}
        first = self.server.complete(SHARED, **fields)["choices"]
        self.assertEqual(len({choice["text"] for choice in first}), 3)
        self.assertEqual(self.server.complete(SHARED, **fields)["choices"], first)
        with Ranks() as replicated:
            self.assertEqual(replicated.complete(SHARED, **fields)["choices"], first)

    def test_disconnected_clients_do_not_affect_others(self):
        for event in self.server.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True}):
            break
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_weights_are_read_again_by_all_ranks(self):
        before = self.server.complete(PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"]
        self.assertEqual(self.server.post("/reload", {})[0], 200)
        self.assertEqual(self.server.complete(PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"], before)


def answer_of_killed_rank(server):
    """Kills rank 1 during a request. Returns status and reply."""
    os.kill(server.pids[1], signal.SIGSTOP)  # keeps the request running
    replies = []
    thread = threading.Thread(target=lambda: replies.append(
        server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8})))
    thread.start()
    time.sleep(1)
    os.kill(server.pids[1], signal.SIGKILL)
    thread.join(ENDS_WITHIN)
    return replies[0]


class DispatchedEnding(unittest.TestCase):
    @unittest.skipIf("mpi" in sys.argv, "mpirun ends all ranks when one is killed")
    def test_killed_rank_gives_503_and_ends_the_server(self):
        server = Ranks("--timeout", "60", parallel="ep=2,mode=dispatched")
        try:
            status, reply = answer_of_killed_rank(server)
            self.assertEqual(status, 503)
            self.assertIn("rank 1", reply["error"]["message"])
            self.assertEqual(server.wait()[0], 1)
            self.assertIn("rank 0: rank 1: needs to take part until the end", server.error_text())
        finally:
            server.kill()

    def test_hanging_rank_gives_503_after_the_timeout(self):
        server = Ranks("--timeout", "3", parallel="ep=2,mode=dispatched")
        try:
            os.kill(server.pids[1], signal.SIGSTOP)
            status, reply = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8})
            self.assertEqual(status, 503)
            self.assertIn("rank 1: needs an answer within 3 s", reply["error"]["message"])
            self.assertNotEqual(server.process.wait(timeout=ENDS_WITHIN), 0)
        finally:
            server.kill()


class Reload(unittest.TestCase):
    def test_new_weights_are_read_by_all_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            model = str(pathlib.Path(folder) / "model")
            shutil.copytree(MODEL, model)
            with Ranks(models=[model, model]) as server:
                options = ("-n", "12", "--temperature", "0")
                self.assertEqual(server.complete(PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"],
                                 text_of_run(MODEL, PROMPT, *options))
                changed(MODEL, model)
                self.assertEqual(server.post("/reload", {})[0], 200)
                expected = text_of_run(model, PROMPT, *options)
                self.assertNotEqual(expected, text_of_run(MODEL, PROMPT, *options))
                self.assertEqual(server.complete(PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"], expected)
                os.rename(f"{model}/model.safetensors", f"{model}/away")
                status, reply = server.post("/reload", {})
                self.assertEqual(status, 500)
                self.assertIn("old weights stay in use", reply["error"]["message"])
                self.assertEqual(server.complete(PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"], expected)

    @unittest.skipIf("mpi" in sys.argv, "mpirun gives all ranks one folder")
    def test_ranks_with_different_weights_keep_the_old_ones(self):
        with tempfile.TemporaryDirectory() as folder:
            model = str(pathlib.Path(folder) / "model")
            shutil.copytree(MODEL, model)
            with Ranks(models=[MODEL, model]) as server:
                before = server.complete(PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"]
                changed(MODEL, model)
                status, reply = server.post("/reload", {})
                self.assertEqual(status, 500)
                self.assertIn("rank 1: needs weights that every rank reads", reply["error"]["message"])
                os.rename(f"{model}/model.safetensors", f"{model}/away")
                status, reply = server.post("/reload", {})
                self.assertEqual(status, 500)
                self.assertIn("rank 1: needs a checkpoint", reply["error"]["message"])
                self.assertEqual(server.complete(PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"], before)


class Rebalance(unittest.TestCase):
    """Experts move between ranks during requests: 16 experts on three ranks, unevenly."""

    FIELDS = {"max_tokens": 24, "temperature": 0}

    def expected(self, *prompts):
        return {prompt: text_of_run(MODEL, prompt, "-n", "24", "--temperature", "0") for prompt in prompts}

    def check_moves(self, server, prompts):
        """Sends requests in many threads while experts move. Every text must equal that of a single process."""
        expected = self.expected(*prompts)

        def one(i):
            prompt = prompts[i % len(prompts)]
            if i % 4 == 0:
                server.complete(PROMPT + " word" * i, max_tokens=3 + i, seed=i, temperature=1)
            return server.complete(prompt, **self.FIELDS)["choices"][0]["text"] == expected[prompt]

        self.assertTrue(one(1))
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            texts = [threads.submit(one, i) for i in range(24)]
            time.sleep(0.2)
            moved = [server.post("/rebalance", {}) for _ in range(3)]
            self.assertTrue(all(text.result() for text in texts))
        self.assertTrue(one(1))
        self.assertEqual({status for status, _ in moved}, {200}, moved)
        return [reply for _, reply in moved]

    def test_texts_equal_one_process_before_during_and_after(self):
        prompts = [PROMPT, SHARED + " bread", "In the beginning"]
        for parallel, copies in (("ep=2", ()), ("ep=3", ()), ("ep=3", ("--redundant-experts", "3")),
                                 ("ep=3,mode=dispatched", ("--redundant-experts", "2"))):
            with Ranks("--rebalance-interval", "1000000", *copies, parallel=parallel) as server:
                replies = self.check_moves(server, prompts)
                self.assertGreater(replies[0]["moved_layers"], 0, replies)
                self.assertGreater(replies[0]["moved_experts"], 0, replies)
                self.assertGreater(replies[0]["imbalance_before"], replies[0]["imbalance_after"], replies)
                self.assertGreaterEqual(server.metric("moracle_rebalances_total"), 3)
                self.assertEqual(server.metric("moracle_failed_rebalances_total"), 0)
                self.assertEqual(server.metric("moracle_moved_experts_total"), sum(r["moved_experts"] for r in replies))
                self.assertGreaterEqual(server.metric("moracle_expert_load_imbalance"), 1)
                lines = [line for line in server.error_text().splitlines() if line.startswith("rebalance: layer ")]
                self.assertEqual(len(lines), sum(reply["moved_layers"] for reply in replies))
                self.assertRegex(lines[0], r"largest load over mean [\d.]+ to [\d.]+; rank 0 (gets|drops) \d")
                # A reload must load experts into their current ranks.
                self.assertEqual(server.post("/reload", {})[0], 200)
                self.assertEqual(server.complete(PROMPT, **self.FIELDS)["choices"][0]["text"],
                                 self.expected(PROMPT)[PROMPT])

    def test_divided_ranks_keep_their_texts(self):
        with Ranks("--rebalance-interval", "1000000", parallel="ep=2,tp=2") as server:
            texts = []
            for _ in range(3):
                texts.append(server.complete(PROMPT, **self.FIELDS)["choices"][0]["text"])
                moved = server.post("/rebalance", {})
                self.assertEqual(moved[0], 200, moved)
            self.assertEqual(len(set(texts)), 1)
            self.assertGreater(server.metric("moracle_moved_experts_total"), 0)

    def test_experts_move_by_themselves_at_the_interval(self):
        expected = self.expected(PROMPT)[PROMPT]
        with Ranks("--rebalance-interval", "8") as server:
            for _ in range(4):
                self.assertEqual(server.complete(PROMPT, **self.FIELDS)["choices"][0]["text"], expected)
            self.assertGreater(server.metric("moracle_rebalances_total"), 1)
            self.assertGreater(server.metric("moracle_moved_layers_total"), 0)

    def test_experts_move_after_a_reload_of_new_weights(self):
        with tempfile.TemporaryDirectory() as folder:
            model = str(pathlib.Path(folder) / "model")
            shutil.copytree(MODEL, model)
            with Ranks("--rebalance-interval", "1000000", models=[model, model]) as server:
                changed(MODEL, model)
                self.assertEqual(server.post("/reload", {})[0], 200)
                expected = text_of_run(model, PROMPT, "-n", "24", "--temperature", "0")
                for _ in range(2):
                    self.assertEqual(server.complete(PROMPT, **self.FIELDS)["choices"][0]["text"], expected)
                    status, reply = server.post("/rebalance", {})
                    self.assertEqual(status, 200, reply)
                self.assertGreater(server.metric("moracle_moved_layers_total"), 0)

    @unittest.skipIf("mpi" in sys.argv, "mpirun gives all ranks one folder")
    def test_read_error_on_one_rank_keeps_the_old_placement_on_all(self):
        with tempfile.TemporaryDirectory() as folder:
            model = str(pathlib.Path(folder) / "model")
            shutil.copytree(MODEL, model)
            expected = self.expected(PROMPT)[PROMPT]
            with Ranks("--rebalance-interval", "1000000", models=[MODEL, MODEL, model], parallel="ep=3") as server:
                def text():
                    return server.complete(PROMPT, **self.FIELDS)["choices"][0]["text"]

                self.assertEqual(text(), expected)
                os.rename(f"{model}/model.safetensors", f"{model}/away")
                status, reply = server.post("/rebalance", {})
                self.assertEqual(status, 500)
                self.assertIn("rank 2: needs its checkpoint to move experts", reply["error"]["message"])
                self.assertEqual(text(), expected)
                self.assertEqual(server.metric("moracle_failed_rebalances_total"), 1)
                self.assertEqual(server.metric("moracle_moved_layers_total"), 0)
                changed(MODEL, model)  # different weights of the same sizes
                status, reply = server.post("/rebalance", {})
                self.assertEqual(status, 500)
                self.assertIn("rank 2", reply["error"]["message"])
                self.assertIn("they have changed", reply["error"]["message"])
                self.assertEqual(text(), expected)
                shutil.copy(f"{model}/away", f"{model}/model.safetensors")
                status, reply = server.post("/rebalance", {})
                self.assertEqual((status, reply["moved_layers"] > 0), (200, True), reply)
                self.assertEqual(text(), expected)

    def test_hanging_rank_gives_503_after_the_timeout(self):
        server = Ranks("--rebalance-interval", "1000000", "--timeout", "3")
        try:
            server.complete(PROMPT, **self.FIELDS)
            os.kill(server.pids[1], signal.SIGSTOP)
            status, reply = server.post("/rebalance", {})
            self.assertEqual(status, 503)
            self.assertIn("rank 1: needs an answer within 3 s", reply["error"]["message"])
            self.assertNotEqual(server.process.wait(timeout=ENDS_WITHIN), 0)
        finally:
            server.kill()

    def test_rebalance_request_needs_the_option(self):
        with Ranks() as server:
            status, reply = server.post("/rebalance", {})
            self.assertEqual(status, 400)
            self.assertIn("--rebalance-interval", reply["error"]["message"])

    def test_unsupported_rebalancing_is_refused_at_start(self):
        for options, message in ((("--redundant-experts", "17"), "redundant experts: needs 0 to 16"),
                                 (("--adapter-folder", "."), "--rebalance-interval: needs a model without adapters")):
            with self.assertRaises(RuntimeError) as failed:
                Ranks("--rebalance-interval", "10", *options)
            self.assertIn(message, str(failed.exception))
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(RuntimeError) as failed:
            Ranks("--routing-statistics", f"{folder}/load.json", parallel="ep=2,mode=dispatched")
        self.assertIn("--routing-statistics: needs mode=replicated", str(failed.exception))


class Adapters(unittest.TestCase):
    def test_adapters_are_loaded_by_all_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            for i, name in enumerate(("one", "two")):
                write_adapter(f"{folder}/{name}", i)
            (pathlib.Path(folder) / "empty").mkdir()
            options = ("-n", "12", "--temperature", "0")
            expected = {name: text_of_run(MODEL, PROMPT, *options, "--lora", f"{folder}/{name}") for name in ("one", "two")}
            expected["model"] = text_of_run(MODEL, PROMPT, *options)
            self.assertEqual(len(set(expected.values())), 3)
            with Ranks("--lora", f"one={folder}/one", "--adapter-folder", folder) as server:
                def check(*names):
                    for name in names:
                        reply = server.complete(PROMPT, max_tokens=12, temperature=0, model=name)
                        self.assertEqual(reply["choices"][0]["text"], expected[name], name)

                check("one", "model")
                self.assertEqual(server.post("/v1/load_lora_adapter", {"lora_name": "two", "lora_path": "two"})[0], 200)
                check("two", "one", "model")
                self.assertNotEqual(
                    server.post("/v1/load_lora_adapter", {"lora_name": "none", "lora_path": "empty"})[0], 200)
                self.assertEqual(server.post("/v1/unload_lora_adapter", {"lora_name": "one"})[0], 200)
                check("two", "model")


class Ending(unittest.TestCase):
    def test_sigterm_lets_requests_finish(self):
        server = Ranks()
        try:
            replies = []
            thread = threading.Thread(target=lambda: replies.append(
                server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True})))
            thread.start()
            while server.metric("moracle_requests_running") < 1 and thread.is_alive():
                time.sleep(0.01)
            os.kill(server.pids[1], signal.SIGTERM)  # launchers signal all ranks
            os.kill(server.pids[0], signal.SIGTERM)
            codes = server.wait()
            thread.join()
            self.assertEqual(set(codes), {0}, server.error_text())
            self.assertEqual(replies[0][0], 200)
            self.assertEqual(replies[0][1]["usage"]["completion_tokens"], 200)
        finally:
            server.kill()

    @unittest.skipIf("mpi" in sys.argv, "mpirun ends all ranks when one is killed")
    def test_killed_rank_gives_503_and_ends_the_server(self):
        server = Ranks("--timeout", "60")
        try:
            status, reply = answer_of_killed_rank(server)
            self.assertEqual(status, 503)
            self.assertIn("rank 1", reply["error"]["message"])
            self.assertEqual(server.request("GET", "/health")[0], 503)
            status, reply = server.post("/v1/completions", {"prompt": PROMPT})
            self.assertEqual(status, 503)
            self.assertIn("rank 1", reply["error"]["message"])
            self.assertEqual(server.wait()[0], 1)
            self.assertIn("rank 0: rank 1: needs to take part until the end", server.error_text())
        finally:
            server.kill()

    @unittest.skipIf("mpi" in sys.argv, "mpirun ends all ranks when one is killed")
    def test_rank_killed_without_requests_ends_the_server(self):
        server = Ranks()
        try:
            os.kill(server.pids[1], signal.SIGKILL)
            self.assertEqual(server.wait()[0], 1)
            self.assertIn("rank 1", server.error_text())
        finally:
            server.kill()

    def test_hanging_rank_gives_503_after_the_timeout(self):
        server = Ranks("--timeout", "3")
        try:
            os.kill(server.pids[1], signal.SIGSTOP)
            status, reply = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8})
            self.assertEqual(status, 503)
            self.assertIn("rank 1: needs an answer within 3 s", reply["error"]["message"])
            self.assertNotEqual(server.process.wait(timeout=ENDS_WITHIN), 0)
            self.assertIn("rank 1", server.error_text())
        finally:
            server.kill()

    def test_killed_rank_ends_the_job(self):
        server = Ranks()
        try:
            os.kill(server.pids[1], signal.SIGKILL)
            self.assertNotEqual(server.process.wait(timeout=ENDS_WITHIN), 0)
        finally:
            server.kill()


if __name__ == "__main__":
    COMMAND, MODEL = sys.argv[1], sys.argv[2]
    MPIRUN = sys.argv[4] if sys.argv[3] == "mpi" else None
    skip_without_server(COMMAND)
    unittest.main(argv=sys.argv[:1])
