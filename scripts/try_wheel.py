"""Build sdist and wheel, look into them, and try the wheel in an empty environment.

    python scripts/try_wheel.py [--keep FOLDER]

The environment has no repository on its path, no data and an empty home. Dependencies are installed
from the index, with the versions of constraints.txt.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
LARGEST = 2_000_000  # bytes of a wheel
# The content of an sdist, with what hatchling adds (.gitignore, PKG-INFO, pyproject.toml).
SDIST = (
    "examples/",
    "scripts/",
    ".gitignore",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
)


class Trial(NamedTuple):
    """A program of the new environment, what it must print, and what it is told besides."""

    words: Sequence[str]
    expected: Sequence[str]
    environment: Mapping[str, str] = {}


COMPLETE = {"_DIFFORMER_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "difformer tr"}
TRIALS = (
    Trial(
        ["python", "-c", "import difformer; print(difformer.load_dataset('cora').describe())"],
        ["2,708 rows"],
    ),
    Trial(["difformer", "--help"], ["--install-completion", "demo"]),
    Trial(["difformer"], ["train"], COMPLETE),
    Trial(["difformer", "datasets"], ["cora"]),
    Trial(["difformer", "train", "digits", "--epochs", "3", "--quiet"], ["accuracy"]),
    Trial(["difformer", "reproduce", "table2", "--models", "gcn", "--show"], ["Cora"]),
)
# What needs the extra `paper` besides.
PAPER_TRIALS = (
    Trial(["difformer", "demo"], ["GCN", "DIFFormer-s", "DIFFormer-a", "digits", "report.html"]),
)


def contents(path: Path) -> list[str]:
    """The names in a wheel or an sdist."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    with tarfile.open(path) as archive:
        return [name.split("/", 1)[1] for name in archive.getnames() if "/" in name]


def sources() -> list[str]:
    """The files of the package."""
    found = [path for path in (REPOSITORY / "src").rglob("*") if path.is_file()]
    names = [path.relative_to(REPOSITORY / "src").as_posix() for path in found]
    return sorted(name for name in names if "__pycache__" not in name and ".egg-info" not in name)


def check_contents(wheel: list[str], sdist: list[str], package: list[str]) -> list[str]:
    """What is missing from them, or too much in them."""
    problems = [f"the wheel lacks {name}" for name in package if name not in wheel]
    problems += [f"the sdist lacks src/{name}" for name in package if f"src/{name}" not in sdist]
    own = {*package}
    more = [name for name in wheel if name not in own and ".dist-info/" not in name]
    problems += [f"the wheel holds {name}" for name in more]
    inside = {f"src/{name}" for name in package}
    extra = [n for n in sdist if n not in inside and not n.startswith(SDIST)]
    return problems + [f"the sdist holds {name}" for name in extra]


def run(
    command: Sequence[str], folder: Path, home: Path, environment: Mapping[str, str] | None = None
) -> str:
    """What a command prints; SystemExit with its errors if it fails."""
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "LANG", "TMP"))}
    kept |= {"PATH": os.environ["PATH"], "HOME": str(home), "OMP_NUM_THREADS": "1"}
    kept |= environment or {}
    done = subprocess.run(
        command, cwd=folder, env=kept, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def install(wheel: str, programs: Path, home: Path) -> None:
    """Install the wheel, with its extras in brackets: by uv if it is on the path, else by pip."""
    uv, python = shutil.which("uv"), str(programs / "python")
    if not programs.exists():
        venv.create(programs.parent, with_pip=uv is None)
    settings = ["--quiet", "-c", str(REPOSITORY / "constraints.txt"), wheel]
    if uv is None:
        settings += ["--no-compile", "--disable-pip-version-check"]
        run([python, "-m", "pip", "install", *settings], programs, home)
    else:  # it does not read pip's settings
        links = {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
        run([uv, "pip", "install", "--python", python, *settings], programs, home, links)


def attempt(trial: Trial, programs: Path, place: Path, home: Path) -> None:
    """Run a trial and say how long it took; SystemExit if it lacks what it must print."""
    (program, *words), expected, environment = trial
    begin = time.monotonic()
    printed = run([str(programs / program), *words], place, home, environment)
    for text in expected:
        if text not in printed:
            raise SystemExit(f"{program} {' '.join(words)} lacks {text!r}:\n{printed}")
    taken = time.monotonic() - begin
    print(f"ok, {taken:3.0f} s: {program}", " ".join(words).strip().replace("\n", "; "))


def main() -> None:
    """Build, look, install, try."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="also leave the two files here")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        home, out = place / "home", place / "dist" if keep is None else keep.resolve()
        home.mkdir()
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
        run([*build, str(REPOSITORY)], place, home)
        (wheel,), (sdist,) = list(out.glob("*.whl")), list(out.glob("*.tar.gz"))
        problems = check_contents(contents(wheel), contents(sdist), sources())
        if wheel.stat().st_size >= LARGEST:
            problems.append(f"the wheel has {wheel.stat().st_size:,} bytes, over {LARGEST:,}")
        if problems:
            raise SystemExit("\n".join(problems))
        programs = place / "env" / ("Scripts" if os.name == "nt" else "bin")
        version = Trial(["difformer", "--version"], [wheel.name.split("-")[1]])
        for name, trials in ((f"{wheel}", (version, *TRIALS)), (f"{wheel}[paper]", PAPER_TRIALS)):
            install(name, programs, home)
            for trial in trials:
                attempt(trial, programs, place, home)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, works alone")


if __name__ == "__main__":
    main()
