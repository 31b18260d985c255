"""The scripts here run in processes of their own; see test_hostile.py."""

collect_ignore_glob = ["[!t]*.py"]
