"""What the README shows runs, and learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


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
