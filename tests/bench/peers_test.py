#!/usr/bin/env python3
"""Tests of bench/peers and bench/roofline.py. What needs numpy, an engine or the library built by
`./dev peers` is skipped where that is not there: run it with build/peers-venv/bin/python for all."""
import importlib.util
import os
import pathlib
import sys
import types
import unittest
import xml.etree.ElementTree

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import against  # noqa: E402
import roofline  # noqa: E402
from peers import ratios, report, rounds  # noqa: E402
from peers.peer import Absent  # noqa: E402

HAS_NUMPY = importlib.util.find_spec("numpy") is not None
HAS_GGML = importlib.util.find_spec("llama_cpp") is not None
HAS_LIBRARY = os.path.exists(os.environ.get("MORACLE_PEERS_LIBRARY", ""))


def entry(peer, name, seconds, beside=""):
    """An entry with these seconds for rounds of one token."""
    return types.SimpleNamespace(
        peer=peer, format=types.SimpleNamespace(name=name, bits=8, family=8, beside=beside),
        nrmse={1: 0.01}, rounds={1: seconds})


def document(entries):
    shape = types.SimpleNamespace(name="small", weights_per_expert=1000, top_k=2)
    cells = {(8, 1): {"read": 1e9, "ops": 1e12, "peak": "int8", "distinct": 2}}
    return report.to_document(entries, cells, {"shape": shape, "absent": [], "notes": [], "versions": {}})


class Statistics(unittest.TestCase):
    def test_quartiles_lie_between_neighbours(self):
        self.assertEqual(ratios.quartiles([4, 1, 3, 2]), (1.75, 2.5, 3.25))
        self.assertEqual(ratios.quartiles([7]), (7, 7, 7))

    def test_a_ratio_is_taken_within_each_round(self):
        # In the second round the machine was three times as slow; no ratio changes.
        ours, theirs = [[1.0], [3.0], [1.0]], [[2.0, 2.0], [6.0], [2.0]]
        self.assertEqual(ratios.ratio(theirs, ours)["ratio"], 2)
        self.assertEqual(ratios.ratio(theirs, ours)["ratio_p75"], 2)

    def test_the_geometric_mean_of_reciprocals_is_one(self):
        self.assertAlmostEqual(ratios.geometric_mean([4, 0.25]), 1)
        self.assertIsNone(ratios.geometric_mean([]))

    def test_the_floor_is_the_longer_of_memory_and_products(self):
        shape = types.SimpleNamespace(weights_per_expert=1000, top_k=2)
        work = ratios.work(3, 4, shape, 4)
        self.assertEqual(work, {"bytes": 1500, "ops": 16000})
        self.assertEqual(ratios.floor(work, 1e9, 1e12)["floor_by"], "memory")
        self.assertAlmostEqual(ratios.floor(work, 1e12, 16e6)["us_floor"], 1000)


class FakeWorker:
    """Returns the listed answers in order; raises those that are exceptions."""

    def __init__(self, **answers):
        self.answers = {method: list(values) for method, values in answers.items()}

    def call(self, method, *_):
        answer = self.answers[method].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def halt(self):
        pass


def engine(*turns):
    return rounds.Entry("engine", None, FakeWorker(turn=turns), {})


class Rounds(unittest.TestCase):
    def test_a_round_that_finds_little_bandwidth_is_repeated(self):
        limits = FakeWorker(ops=[5, 7], read=[100, 100, 40, 100, 100])
        one, other = engine([1], [9], [9], [2]), engine([3], [9], [9], [4])
        found = rounds.Clock(limits).time_cell([one, other], 16, 1, 2, "int8")
        self.assertEqual(found, (100, 6))
        self.assertEqual(sorted(one.rounds[16]), [[1], [2]])
        # Each round keeps its pair, in either order.
        self.assertEqual(sorted(zip(one.rounds[16], other.rounds[16])), [([1], [3]), ([2], [4])])

    def test_patience_ends(self):
        limits = FakeWorker(ops=[1, 1], read=[100, *[40] * 6])
        one = engine(*([i] for i in range(6)))
        self.assertEqual(rounds.Clock(limits).time_cell([one], 1, 1, 3, "int8"), (40, 1))
        self.assertEqual(len(one.rounds[1]), 3)

    def test_who_crashes_is_left_out_and_keeps_its_reason(self):
        limits = FakeWorker(ops=[1, 1], read=[1] * 3)
        one, other = engine([1], Absent("SIGILL")), engine([3], [4])
        rounds.Clock(limits).time_cell([one, other], 1, 1, 2, "int8")
        self.assertEqual((one.gone, one.rounds[1]), ("SIGILL", []))
        self.assertEqual(other.rounds[1], [[3], [4]])


class Report(unittest.TestCase):
    def test_a_peer_is_held_against_the_format_that_it_names(self):
        text = report.to_text(document([
            entry("moracle", "int8-w8a8", [[1e-3], [1e-3]]),
            entry("moracle", "fp8", [[9e-3], [9e-3]]),
            entry("other", "q8", [[2e-3], [3e-3]], "int8-w8a8")]))
        self.assertIn("| other | q8 | 8 | 0.010 | 2,500 2.50 (2.25–2.75) |", text)
        self.assertIn("| best peer |  |  |  | 2.50 | – | 2.50 |", text)

    def test_without_the_other_there_is_no_ratio(self):
        rows = document([entry("other", "q8", [[2e-3]], "int8-w8a8")])["rows"]
        self.assertNotIn("ratio", rows[0])

    def test_who_is_absent_is_named_with_the_reason(self):
        one = document([entry("moracle", "int8-w8a8", [[1e-3]])])
        one["absent"] = [{"engine": "other", "format": "q8", "reason": "not installed"}]
        self.assertIn("no other q8: not installed", report.to_text(one))


class Roofline(unittest.TestCase):
    def test_the_picture_is_xml_with_a_point_for_each_row(self):
        one = document([entry("moracle", "int8-w8a8", [[1e-3]]), entry("other", "<q8>", [[2e-3]])])
        picture = xml.etree.ElementTree.fromstring(roofline.draw([one], "a & b"))
        points = picture.findall(".//{http://www.w3.org/2000/svg}circle")
        self.assertEqual(len(points), 2)
        self.assertIn("<q8>", picture.find(".//*[@cx]/../*[@cx][last()]/*").text)


class Against(unittest.TestCase):
    def row(self, tokens, ratio, **more):
        return {"shape": "small", "scheme": "int8-w8a8", "num_tokens": tokens, "chosen": True,
                "best_public": {"impl": "theirs", "us": 2.0, "ratio": ratio}, **more}

    def test_the_picture_has_a_point_for_each_chosen_cell_with_an_anchor(self):
        rows = [self.row(1, 4.0), self.row(8, 1.0), self.row(8, 9.0, chosen=False),
                {"shape": "small", "scheme": "bf16", "num_tokens": 1, "chosen": True}]
        text = against.draw([{"rows": rows}], "best_public", "a & b")
        picture = xml.etree.ElementTree.fromstring(text)
        points = picture.findall(".//{http://www.w3.org/2000/svg}circle")
        self.assertEqual(len(points), 2)
        self.assertIn("geometric mean 2.00", text)
        heights = {float(point.get("cy")) for point in points}
        self.assertEqual(len(heights), 2)

    def test_without_anchors_it_says_so(self):
        with self.assertRaisesRegex(SystemExit, "--anchors"):
            against.draw([{"rows": []}], "vllm", "")


@unittest.skipUnless(HAS_NUMPY, "needs numpy")
class Layers(unittest.TestCase):
    def setUp(self):
        from peers import problem
        self.problem_room, self.problem = problem, problem.Problem(problem.find_shape("8x256x256x2"))

    def test_an_expert_is_what_gathering_all_gives(self):
        import numpy
        for weight in self.problem_room.WEIGHTS:
            every = self.problem.gather(1, weight, self.problem.pool(weight))
            numpy.testing.assert_array_equal(every[3], self.problem.expert(1, weight, 3))

    def test_tokens_go_to_distinct_experts_and_single_ones_to_all_in_turn(self):
        single = self.problem.batch(1)
        self.assertEqual(sorted(int(e) for ids in single.ids for e in ids[0]), list(range(8)))
        for ids in self.problem.batch(16).ids:
            self.assertTrue(all(len(set(row)) == 2 for row in ids.tolist()))

    def check(self, peer, format_name, most):
        layers = peer.make(format_name, self.problem, 2, 16, 1)
        batch = self.problem.batch(16)
        for layer in (1, 0):
            job = layers.prepare(layer, batch.hidden, batch.ids[1], batch.weights[1])
            layers.load(job)
            layers.run(job)
            expected = self.problem.reference(layer, batch, 1, 15)
            self.assertLess(self.problem_room.nrmse(layers.output(job)[15], expected), most)

    @unittest.skipUnless(HAS_LIBRARY, "needs MORACLE_PEERS_LIBRARY")
    def test_this_library_computes_the_layer(self):
        from peers.moracle import Moracle
        for name, most in (("bf16", 0.01), ("int8-w8a8", 0.05), ("int4-w4a16-g128", 0.3),
                           ("mxfp4-w4a16", 0.3), ("fp8-w8a8-block128x128", 0.1),
                           ("bf16:x-bf16", 0.01)):
            self.check(Moracle(), name, most)

    @unittest.skipUnless(HAS_GGML, "needs llama-cpp-python")
    def test_ggml_computes_the_layer(self):
        from peers.ggml import Ggml
        for name, most in (("bf16", 0.01), ("q8_0", 0.05), ("q4_0:repack", 0.3)):
            self.check(Ggml(), name, most)


if __name__ == "__main__":
    unittest.main()
