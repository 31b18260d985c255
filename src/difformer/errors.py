"""The errors a user can act on: one line that names what is wrong and what to do.

The command line prints them without a traceback and exits with code 2.
"""


class DifformerError(Exception):
    """Something outside the program is wrong: a file, the network, a setting.

    The message is always one line, also if it quotes a library; torch's C++ traceback is dropped.
    """

    def __init__(self, message: object = "") -> None:
        said, _, _ = str(message).partition("\nException raised from ")
        super().__init__(" ".join(line.strip() for line in said.splitlines()).strip())


class DataError(DifformerError):
    """A dataset is missing, damaged or not of the stated layout."""


class ModelFileError(DifformerError):
    """A saved model is truncated, tampered with, or of another version."""


class RunError(DifformerError):
    """A run folder cannot be used as asked: missing parts, another configuration."""


class DriftWarning(UserWarning):
    """New rows hold values, or miss values, as no row of training does."""


class TrainingError(DifformerError):
    """Training cannot go on: the loss or the validation metric is not a number."""


def missing_extra(what: str, extra: str) -> DifformerError:
    """The error where packages of one of the extras of pyproject.toml are not installed."""
    return DifformerError(f"{what} needs: pip install 'difformer[{extra}]'")
