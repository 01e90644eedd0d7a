"""Tests the server with third-party clients, if installed: clients_test.py COMMAND MODEL."""
import asyncio
import importlib.util
import sys
import unittest

from client import Server, skip_without_server

COMMAND, MODEL = "", ""
MESSAGES = [{"role": "user", "content": "Who is Moses?"}]
PROMPT = "And the LORD spake unto Moses, saying,"


class OpenAi(unittest.TestCase):
    """The package openai, from PyPI."""

    @classmethod
    def setUpClass(cls):
        import openai
        cls.openai = openai
        cls.server = Server(COMMAND, MODEL, "--deterministic")
        cls.options = {"base_url": f"http://127.0.0.1:{cls.server.port}/v1", "api_key": "unused", "max_retries": 0}
        cls.client = openai.OpenAI(**cls.options)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.end()

    def test_chat_whole_and_as_a_stream(self):
        fields = {"model": self.model, "messages": MESSAGES, "seed": 3, "max_tokens": 24, "temperature": 0.8}
        whole = self.client.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
        self.assertEqual(whole.usage.completion_tokens, len(whole.choices[0].logprobs.content))
        pieces, usage = [], None
        with self.client.chat.completions.create(**fields, stream=True,
                                                 stream_options={"include_usage": True}) as stream:
            for event in stream:
                pieces += [choice.delta.content or "" for choice in event.choices]
                usage = event.usage or usage
        self.assertEqual("".join(pieces), whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_completions_whole_and_as_a_stream(self):
        fields = {"model": self.model, "prompt": PROMPT, "max_tokens": 16, "temperature": 0}
        whole = self.client.completions.create(**fields, logprobs=1, echo=True)
        text = whole.choices[0].text
        self.assertTrue(text.startswith(PROMPT))
        self.assertEqual("".join(whole.choices[0].logprobs.tokens), text)
        with self.client.completions.create(**fields, stream=True) as stream:
            self.assertEqual(PROMPT + "".join(event.choices[0].text for event in stream), text)

    def test_choices_as_a_stream_are_those_of_the_whole_reply(self):
        fields = {"model": self.model, "messages": MESSAGES, "seed": 5, "max_tokens": 16, "temperature": 1, "n": 3,
                  "logprobs": True, "top_logprobs": 2}
        whole = self.client.chat.completions.create(**fields)
        self.assertGreater(len({choice.message.content for choice in whole.choices}), 1)
        texts, scores = [""] * 3, [[], [], []]
        with self.client.chat.completions.create(**fields, stream=True) as stream:
            for event in stream:
                for choice in event.choices:
                    texts[choice.index] += choice.delta.content or ""
                    scores[choice.index] += choice.logprobs.content if choice.logprobs else []
        self.assertEqual(texts, [choice.message.content for choice in whole.choices])
        self.assertEqual(scores, [choice.logprobs.content for choice in whole.choices])

    def test_one_model_is_retrieved(self):
        self.assertEqual(self.client.models.retrieve(self.model), self.client.models.list().data[0])
        with self.assertRaises(self.openai.NotFoundError):
            self.client.models.retrieve("org/missing")

    def test_asynchronous_requests_share_steps(self):
        async def all_of_them():
            async with self.openai.AsyncOpenAI(**self.options) as client:
                async def streamed(seed):
                    stream = await client.chat.completions.create(
                        model=self.model, messages=MESSAGES, seed=seed, max_tokens=20, temperature=1, stream=True)
                    return "".join([event.choices[0].delta.content or "" async for event in stream])

                async def whole(seed):
                    reply = await client.chat.completions.create(model=self.model, messages=MESSAGES, seed=seed,
                                                                 max_tokens=20, temperature=1)
                    return reply.choices[0].message.content

                return await asyncio.gather(*map(streamed, range(8)), *map(whole, range(8)))

        texts = asyncio.run(all_of_them())
        self.assertEqual(texts[:8], texts[8:])
        self.assertGreater(len(set(texts)), 4)

    def test_errors_become_the_clients_exceptions(self):
        with self.assertRaises(self.openai.NotFoundError) as missing:
            self.client.completions.create(model="missing", prompt="a")
        self.assertEqual(missing.exception.code, "model_not_found")
        with self.assertRaises(self.openai.BadRequestError) as wrong:
            self.client.chat.completions.create(model=self.model, messages=MESSAGES, temperature=-1)
        self.assertEqual(wrong.exception.param, "temperature")


class Prometheus(unittest.TestCase):
    """The parser of the package prometheus_client, from PyPI."""

    def test_all_metrics_are_read(self):
        from prometheus_client.parser import text_string_to_metric_families
        with Server(COMMAND, MODEL) as server:
            server.complete(PROMPT, max_tokens=5, temperature=0)
            text = server.request("GET", "/metrics")[2]
        families = {family.name: family for family in text_string_to_metric_families(text)}
        self.assertTrue(all(family.documentation and family.type != "unknown" for family in families.values()))
        tokens, first = families["moracle_generated_tokens"], families["moracle_time_to_first_token_seconds"]
        self.assertEqual((tokens.type, tokens.samples[0].value), ("counter", 5))
        self.assertEqual(first.type, "histogram")
        buckets = [sample.value for sample in first.samples if sample.name.endswith("_bucket")]
        self.assertEqual((buckets, buckets[-1]), (sorted(buckets), 1))
        parts = families["moracle_part_seconds"].samples
        self.assertTrue({"experts", "scheduling", "answers"} <= {sample.labels["part"] for sample in parts})
        outcomes = {sample.labels["outcome"]: sample.value for sample in families["moracle_requests"].samples}
        self.assertEqual(outcomes, {"length": 1})


if __name__ == "__main__":
    COMMAND, MODEL = sys.argv[1:3]
    del sys.argv[1:3]
    skip_without_server(COMMAND)
    packages = {"openai": OpenAi, "prometheus_client": Prometheus}
    there = [name for name in packages if importlib.util.find_spec(name)]
    for name in packages.keys() - there:
        print(f"skipped: this Python has no package {name}")
        del globals()[packages[name].__name__]
    if not there:
        sys.exit(77)
    unittest.main(verbosity=2)
