"""llama.cpp's decode steps and prompts through the C functions that llama-cpp-python binds."""

import random
import time

from llama_cpp import llama_cpp

F16 = 1  # of enum ggml_type: keys and values


class Batch:
    """Tokens of several sequences for one call."""

    def __init__(self, most):
        self.batch = llama_cpp.llama_batch_init(most, 0, 1)

    def fill(self, tokens):
        """tokens: [(token, position, sequence, whether it needs logits)]."""
        for i, (token, position, sequence, logits) in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
            self.batch.logits[i] = logits
        self.batch.n_tokens = len(tokens)
        return self.batch

    def close(self):
        llama_cpp.llama_batch_free(self.batch)


class LlamaModel:
    """One model file, loaded into its own memory. The memory's location, and with it the bandwidth, differs
    between loads."""

    def __init__(self, path, vocabulary, threads):
        llama_cpp.llama_log_set(_quiet, None)
        params = llama_cpp.llama_model_default_params()
        params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.vocabulary, self.threads, self.draw = vocabulary, threads, random.Random(1)

    def open(self, context, sequences, flash):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = (context + 64) * sequences
        params.n_batch, params.n_ubatch = 2048, 512
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = self.threads
        params.type_k = params.type_v = F16
        params.flash_attn_type = 1 if flash else 0
        params.no_perf = True
        # One pool of cells for all sequences: the other layout splits a step by sequence.
        params.kv_unified = True
        opened = llama_cpp.llama_init_from_model(self.model, params)
        if not opened:
            raise RuntimeError("llama.cpp cannot make a context")
        return opened

    def _call(self, opened, batch, tokens):
        filled = batch.fill(tokens)
        start = time.perf_counter()
        if llama_cpp.llama_decode(opened, filled) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(opened)
        return time.perf_counter() - start

    def _token(self):
        return self.draw.randrange(self.vocabulary)

    def decode_seconds(self, context, sequences, flash, steps):
        """Seconds of each of `steps` decode steps with `context` tokens in each cache. `flash`:
        llama.cpp's flash attention on a CPU."""
        opened, batch = self.open(context, sequences, flash), Batch(2048)
        for sequence in range(sequences):
            for at in range(0, context, 512):
                self._call(opened, batch, [(self._token(), p, sequence, p + 1 == context)
                                           for p in range(at, min(at + 512, context))])
        times = [self._call(opened, batch, [(self._token(), context + step, sequence, True)
                                            for sequence in range(sequences)])
                 for step in range(steps + 2)]
        batch.close()
        llama_cpp.llama_free(opened)
        return times[2:]

    def prompt_seconds(self, tokens, sequences, flash, times):
        """Prefills `sequences` prompts of equal length several times; returns the seconds of each time."""
        opened, batch, all_seconds = self.open(tokens, sequences, flash), Batch(2048), []
        for _ in range(times + 1):
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(opened), True)
            seconds = 0.0
            for sequence in range(sequences):
                for at in range(0, tokens, 2048):
                    seconds += self._call(opened, batch, [
                        (self._token(), p, sequence, p + 1 == tokens)
                        for p in range(at, min(at + 2048, tokens))])
            all_seconds.append(seconds)
        batch.close()
        llama_cpp.llama_free(opened)
        return all_seconds[1:]

    def close(self):
        llama_cpp.llama_model_free(self.model)


@llama_cpp.llama_log_callback
def _quiet(level, text, data):
    del level, text, data
