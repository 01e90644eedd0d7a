"""Runs the code blocks of docs/python.md and of the pages in docs/python."""
import re

import pytest
from conftest import ROOT

PAGES = [ROOT / "docs" / "python.md", *sorted((ROOT / "docs" / "python").glob("*.md"))]
PAGES = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_of_the_page_runs(page, monkeypatch, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    for package in ("torch", "transformers"):
        if re.search(rf"^(import|from) {package}\b", "".join(blocks), re.M):
            pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(ROOT)
    names = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)
    if page.stem == "python":
        printed = capsys.readouterr().out
        assert re.search(r"^> \S+ +yes", printed, re.M)  # the marked choice of the oracle
        assert "LORD" in printed


def test_every_integration_has_a_page():
    assert {page.stem for page in PAGES} == {"python", "fused_experts", "torch", "transformers"}
    assert (ROOT / "docs" / "python" / "vllm.md").exists()


def test_page_of_vllm_lists_the_served_methods():
    pytest.importorskip("torch", reason="torch is not installed")
    from moracle.integrations.vllm.schemes import table
    # To update: python -m moracle.integrations.vllm.schemes
    assert "\n".join(table()) in (ROOT / "docs" / "python" / "vllm.md").read_text(encoding="utf-8")
