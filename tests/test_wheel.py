"""What `make wheel` looks for in wheel and sdist before it tries the wheel alone."""

from __future__ import annotations

from scripts.try_wheel import check_contents, sources


def test_the_files_of_the_package_are_found() -> None:
    package = sources()
    assert {"difformer/data/embedded/cora.npz", "difformer_paper/specs/table2.toml"} <= set(package)
    assert not any("__pycache__" in name for name in package)


def test_what_is_missing_and_what_is_too_much_is_named() -> None:
    package = ["difformer/a.py", "difformer/b.npz"]
    sdist = ["src/difformer/a.py", "src/difformer/b.npz", "README.md"]

    def found(wheel: list[str], sdist: list[str]) -> list[str]:
        return check_contents(wheel, sdist, package)

    assert found([*package, "difformer-1.dist-info/METADATA"], sdist) == []
    assert found(package[1:], sdist) == ["the wheel lacks difformer/a.py"]
    assert found(package, sdist[1:]) == ["the sdist lacks src/difformer/a.py"]
    for odd in ("tests/a.py", "difformer/__pycache__/a.pyc"):
        assert found([*package, odd], sdist) == [f"the wheel holds {odd}"]
    for odd in ("tests/a.py", ".venv/a", "results/a.json", "src/difformer/__pycache__/a.pyc"):
        assert found(package, [*sdist, odd]) == [f"the sdist holds {odd}"]
