"""`python -m difformer` is `difformer`."""

from difformer.app.cli import main

if __name__ == "__main__":
    main()
