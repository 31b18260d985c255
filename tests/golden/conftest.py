"""Only test_golden.py is collected: the cases run in a process of their own."""

from pathlib import Path

HERE = Path(__file__).resolve().parent
collect_ignore = [file.name for file in HERE.glob("*.py") if not file.name.startswith("test_")]
