#!/usr/bin/env python3
"""Tests how bench/lab/intel_roofline.py reads disassembly and counts cells, without the compiler.

usage: intel_roofline_test.py"""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench/lab"))
import intel_roofline as roofline  # noqa: E402

# A loop of two dpas with a branch around two loads, then code outside the loop.
LOOP = """
L0:
(W)     mov (16|M0)              r1.0<1>:ud    0x0:ud
L16:
        add (16|M0)              r2.0<1>:q     r1.0<1;1,0>:q     1:w
        send.ugm (16|M0)         r9       r2      null:0  0x0   0x04100580   {I@1,$2}
(W&~f2.0) jmpi                               L64
L48:
        send.ugm (16|M0)         r10      r2      null:0  0x0   0x04100580   {I@1,$3}
        send.ugm (16|M0)         r11      r2      null:0  0x0   0x04100580   {I@1,$4}
L64:
        dpas.8x8 (16|M0)         r9:f          null:f            r49:bf            r37.0:bf  {$1}
        mad (16|M0)              r82.0<1>:f    r82.0<1;0>:f      r65.0<1;0>:f      r9.0<1>:f
        dpas.8x8 (16|M0)         r9:f          r9:f              r29:bf            r25.0:bf  {$1}
(~f1.1) goto (16|M0)                         L112                  L112
L96:
(W)     jmpi                                 L16
L112:
        join (16|M0)                         L128
"""


class IntelRoofline(unittest.TestCase):
    def test_counts_the_shortest_way_through_every_dpas(self):
        loop = roofline.hot_loop(LOOP, 16)
        self.assertEqual((loop.dpas, loop.others, loop.sends), (2, 6, 1))
        self.assertEqual(loop.cycles, 7)  # the 64-bit add takes two
        self.assertEqual(roofline.hot_loop(LOOP, 8).cycles, 10)  # and 16 numbers take two on 8 lanes

    def test_dpas_takes_the_cycles_of_the_published_rate(self):
        for gpu, cycles in zip(roofline.GPUS, (16, 16, 8)):
            self.assertAlmostEqual(roofline.dpas_cycles(gpu, roofline.intel.DEVICES[gpu.target]), cycles, delta=0.1)

    def test_expects_distinct_experts_and_strips(self):
        touched, strips = roofline.spread(1, 128, 8, 8)
        self.assertAlmostEqual(touched, 8)
        self.assertAlmostEqual(strips, 8)
        touched, strips = roofline.spread(2048, 128, 8, 32)
        self.assertAlmostEqual(touched, 128, places=3)
        self.assertTrue(128 * 4 < strips < 128 * 5)  # 128 rows each, and half a strip of padding

    def test_prediction_of_a_short_loop_is_the_floor(self):
        scheme = next(s for s in roofline.SCHEMES if s.name == "int8-w8a8")
        loops = {8: roofline.hot_loop(LOOP, 16)}
        self.assertEqual(roofline.cell(roofline.GPUS[1], scheme, loops, (128, 8, 2048, 768), 1), "83 / 83")


if __name__ == "__main__":
    unittest.main()
