"""`python -m difformer` is `difformer`."""

from difformer.cli import main

if __name__ == "__main__":
    main()
