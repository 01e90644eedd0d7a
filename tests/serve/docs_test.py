"""Runs the curl examples of the pages: docs_test.py COMMAND MODEL PAGE…"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from client import Server, skip_without_server

COMMAND, MODEL, PAGES = "", "", []


def examples(page):
    """The commands after `$ ` in the code blocks of a page."""
    blocks = re.findall(r"^```console\n(.*?)^```", pathlib.Path(page).read_text(encoding="utf-8"), re.M | re.S)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ curl ")]


class Examples(unittest.TestCase):
    def test_curl_examples_are_answered(self):
        commands = [command for page in PAGES for command in examples(page)]
        self.assertGreaterEqual(len(commands), 5)
        with Server(COMMAND, MODEL) as server:
            for command in commands:
                with self.subTest(command):
                    self.assertIn("localhost:8000", command)
                    here = command.replace("localhost:8000", f"127.0.0.1:{server.port}")
                    ran = subprocess.run(["bash", "-c", here + " --fail-with-body"], capture_output=True, text=True)
                    self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
                    if "/metrics" in command:
                        self.assertIn("moracle_generated_tokens_total", ran.stdout)
                    elif '"stream": true' in command:
                        self.assertTrue(ran.stdout.endswith("data: [DONE]\n\n"))
                    else:
                        self.assertIsNone(json.loads(ran.stdout).get("error"))


if __name__ == "__main__":
    COMMAND, MODEL, *PAGES = sys.argv[1:]
    del sys.argv[1:]
    if not shutil.which("curl"):
        print("skipped: curl is missing")
        sys.exit(77)
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)
