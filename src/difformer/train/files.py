"""The writers of `difformer.files`, by the name they had here."""

from difformer.files import cannot_write, write_atomic

__all__ = ["cannot_write", "write_atomic"]
