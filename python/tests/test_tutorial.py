"""Runs the code of docs/python.md, block after block."""
import re

from conftest import ROOT


def test_code_of_the_tutorial_runs(monkeypatch, capsys):
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    assert len(blocks) >= 6
    monkeypatch.chdir(ROOT)
    names = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    printed = capsys.readouterr().out
    assert re.search(r"^> \S+ +yes", printed, re.M)  # the oracle's choice is marked
    assert "LORD" in printed
