"""What the README shows runs, and learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from difformer.commands.reproduce import PAGES
from difformer.experiments.tables import fill_page

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_a_page_are_those_of_the_results(name: str) -> None:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    assert "<!-- results: table" in text
    assert fill_page(text, REPOSITORY / "results") == text, "run: difformer reproduce --readme"


def test_the_python_example_learns(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert code.count("\n") <= 16
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY / 'src')!r})\n" + code
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.manual_seed(0)\n" + code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split()[-1]) > 0.85
