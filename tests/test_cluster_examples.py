"""The examples for clusters are well formed, and call options that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from difformer.app.cli import main

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "cluster"


def calls(text: str) -> list[tuple[str, set[str]]]:
    """The commands of difformer in a text, and the options each is given."""
    joined = re.sub(r"\\\n#?", " ", text)
    found = re.findall(r"difformer (shard|train) ((?:[^\n&\"]|\n {4,}--)*)", joined)
    return [(name, set(re.findall(r" (--[a-z][a-z-]*)", rest))) for name, rest in found]


@pytest.mark.parametrize("name", ["slurm.sh", "kubernetes.yaml", "ray.yaml"])
def test_every_option_of_an_example_exists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = calls((FOLDER / name).read_text(encoding="utf-8"))
    assert any(options for _, options in found)
    for command, options in found:
        with pytest.raises(SystemExit):
            main([command, "--help-all" if command == "train" else "--help"])
        known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
        assert options <= known, (command, options - known)


def test_scripts_and_manifests_can_be_read() -> None:
    subprocess.run(["bash", "-n", str(FOLDER / "slurm.sh")], check=True)
    yaml: Any = pytest.importorskip("yaml")
    for name in ("kubernetes.yaml", "ray.yaml"):
        documents = list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))
        assert all(document["kind"] for document in documents)
