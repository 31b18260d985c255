"""The scripts here run in processes of their own; see test_hostile.py."""

collect_ignore = [
    "clients.py",
    "formats.py",
    "full.py",
    "fuzz.py",
    "fuzz_runs.py",
    "fuzz_tables.py",
    "fuzz_tensors.py",
    "kills.py",
    "mutate.py",
    "threads.py",
]
