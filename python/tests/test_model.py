"""Model: generation, logits, perplexity, cancellation."""
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import moracle

PROMPT = "And the LORD spake unto Moses, saying,"


def test_generation_continues_as_the_readme_shows(model, model_folder):
    readme = (model_folder.parents[1] / "README.md").read_text(encoding="utf-8")
    text = model.generate(PROMPT, seed=1, max_tokens=48).text
    assert text.splitlines()[0].startswith(" The LORD hath given thee an altar,")
    assert "".join(text.split()) in "".join(readme.split())


def test_repr_says_what_an_object_holds(model, model_folder):
    assert re.fullmatch(r"<Model: \d+ bytes of weights on cpu, vocabulary 4096, context 2048>", repr(model))
    generation = model.generate(PROMPT, max_tokens=3, temperature=0)
    assert repr(generation) == f"<Generation: 3 tokens, stopped by length: {generation.text!r}>"
    stream = model.stream(PROMPT, max_tokens=500, ignore_eos=True)
    assert repr(stream) == "<TokenIterator: running>"
    stream.close()
    assert repr(stream) == "<TokenIterator: cancelled>"
    checkpoint = moracle.Checkpoint(model_folder)
    weights = checkpoint.moe_layer(0)
    assert repr(weights) == f"<DescribedWeights: {weights.spec}>"
    moe = moracle.FusedMoe(weights)
    assert repr(moe) == f"<FusedMoe: {moe.spec} on {moe.backend}>"
    assert repr(weights) == "<DescribedWeights: consumed>"


def test_stream_gives_the_same_tokens_and_text(model):
    ids = model.encode(PROMPT)
    whole = model.generate(ids, max_tokens=20)
    assert list(model.stream(ids, max_tokens=20)) == whole.ids
    stream = model.stream(PROMPT, max_tokens=20)
    assert "".join(stream) == whole.text
    assert stream.stop_reason == whole.stop_reason == "length"


def test_stop_strings_and_ids_end_generation_and_streams(model):
    whole = model.generate(PROMPT, max_tokens=30, temperature=0)
    stop = whole.text[20:24]
    before = whole.text[:whole.text.index(stop)]
    made = model.generate(PROMPT, max_tokens=30, temperature=0, stop=["\0", stop])
    assert (made.text, made.stop_reason) == (before, "stop")
    stream = model.stream(PROMPT, max_tokens=30, temperature=0, stop=[stop])
    assert "".join(stream) == before and stream.stop_reason == "stop"
    made = model.generate(PROMPT, max_tokens=30, temperature=0, stop_token_ids=[whole.ids[4]])
    assert made.ids == whole.ids[:whole.ids.index(whole.ids[4]) + 1] and made.stop_reason == "eos"


def test_logit_edits_apply(model):
    whole = model.generate(PROMPT, max_tokens=30, temperature=0)
    once = model.generate(PROMPT, max_tokens=30, temperature=0, no_repeat_ngram_size=1).ids
    assert len(set(once)) == len(once) and not set(once) & set(model.encode(PROMPT))
    assert model.generate(PROMPT, max_tokens=1, suppress_tokens=whole.ids[:1], temperature=0).ids != whole.ids[:1]
    assert model.generate(PROMPT, max_tokens=1, begin_suppress_tokens=whole.ids[:1], temperature=0).ids != whole.ids[:1]
    assert model.generate(PROMPT, max_tokens=30, repetition_penalty=1.5, temperature=0).ids != whole.ids
    assert "LORD" not in model.generate(PROMPT, max_tokens=60, bad_words=["LORD"]).text
    long = model.generate(PROMPT, max_tokens=9, min_tokens=5, stop_token_ids=whole.ids[:1], temperature=0)
    assert len(long.ids) > 5
    assert model.generate(PROMPT, max_tokens=3, typical_p=0.5, seed=1).ids


def test_calls_while_a_stream_runs_do_not_block(model):
    expected = model.generate(PROMPT, max_tokens=30, temperature=0).ids
    seen = []
    for token in model.stream(model.encode(PROMPT), max_tokens=30, temperature=0):
        model.logits([token])
        seen.append(token)
    assert seen == expected


def test_closed_stream_ends(model):
    stream = model.stream([1, 2], max_tokens=500, ignore_eos=True)
    next(stream)
    stream.close()
    assert stream.stop_reason == "cancelled"
    assert len(list(stream)) < 499


def test_logits_give_the_greedy_token(model):
    ids = model.encode(PROMPT)
    logits = model.logits(ids)
    assert logits.shape == (len(ids), model.vocab_size) and logits.dtype == np.float32
    assert model.generate(ids, max_tokens=1, temperature=0).ids == [int(logits[-1].argmax())]


def test_perplexity_follows_from_logits(model):
    ids = model.encode(PROMPT)
    logits = model.logits(ids)[:-1].astype(np.float64)
    nll = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(ids) - 1), ids[1:]]
    result = model.perplexity(ids, window=64)
    assert result["scored_tokens"] == len(ids) - 1
    assert abs(result["nll"] - nll.mean()) < 1e-4
    assert abs(result["perplexity"] - np.exp(result["nll"])) < 1e-9


def test_wrong_prompts_and_options_are_refused(model):
    with pytest.raises(moracle.InvalidArgument, match="prompt"):
        model.generate(3.5)
    with pytest.raises(moracle.InvalidArgument, match="prompt: needs at least one token"):
        model.generate([])
    with pytest.raises(moracle.InvalidArgument, match="top_p: needs"):
        model.generate([1], top_p=2.0)
    with pytest.raises(moracle.InvalidArgument, match="repetition_penalty: needs"):
        model.generate([1], repetition_penalty=0)
    with pytest.raises(TypeError, match="stop: needs a list of strings"):
        model.generate([1], stop=5)
    with pytest.raises(TypeError, match="unknown name"):
        model.generate([1], temprature=1)
    with pytest.raises(moracle.InvalidArgument):
        list(model.stream([model.vocab_size]))


def test_progress_stops_loading(model_folder):
    with pytest.raises(moracle.Cancelled):
        moracle.Model.load(model_folder, progress=lambda done, total: False)


def test_exception_of_progress_reaches_the_caller(model_folder):
    def fail(done, total):
        raise KeyError("stop")
    with pytest.raises(KeyError, match="stop"):
        moracle.Model.load(model_folder, progress=fail)


def test_progress_ends_at_the_total(model_folder):
    seen = []
    moracle.Model.load(model_folder, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0


@pytest.fixture
def interrupts():
    """Installs Python's handler of Ctrl-C: a background process starts with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(call, seconds):
    """True if Ctrl-C after `seconds` interrupts the call, in one of ten tries."""
    for _ in range(10):
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
        returned = False
        try:
            timer.start()
            call()
            returned = True
            timer.join()
            time.sleep(1)  # catches a late signal
        except KeyboardInterrupt:
            if not returned:
                return True
    return False


def test_interrupt_stops_generation(model, interrupts):
    assert interrupted(lambda: model.generate([1, 2, 3], max_tokens=model.max_context - 3, ignore_eos=True), 0.01)


def test_interrupt_stops_loading(model_folder, interrupts):
    assert interrupted(lambda: moracle.Model.load(model_folder, threads=1), 0.005)


def test_interrupt_stops_packing(interrupts):
    w1, w2 = np.ones((64, 2048, 512), np.float32), np.ones((64, 512, 1024), np.float32)
    assert interrupted(lambda: moracle.pack(w1, w2, top_k=2), 0.02)


def test_interrupt_stops_a_stream(model, interrupts):
    with pytest.raises(KeyboardInterrupt):
        for count, _ in enumerate(model.stream([1, 2, 3], max_tokens=400, ignore_eos=True)):
            if count == 2:
                os.kill(os.getpid(), signal.SIGINT)


def test_gil_is_free_during_generation(model):
    counted = 0
    done = threading.Event()

    def work():
        model.generate([1, 2, 3], max_tokens=200, ignore_eos=True)
        done.set()
    thread = threading.Thread(target=work)
    thread.start()
    while not done.wait(0.0005):
        counted += 1
    thread.join()
    assert counted >= 3


def test_fork_after_import_says_what_to_do(model_folder):
    code = f"""if True:
        import os, sys, warnings, moracle
        warnings.simplefilter("ignore")
        model = moracle.Model.load({str(model_folder)!r}, threads=2)
        if os.fork() == 0:
            try:
                model.logits([1])
            except moracle.Unsupported as error:
                print(error, flush=True)
            del model
            os._exit(0)
        os.wait()
        sys.exit(model.logits([1]).shape[0] != 1)"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "start workers with the method 'spawn'" in run.stdout
