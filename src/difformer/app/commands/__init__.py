"""One file per command; `difformer.app` lists them."""
