"""What a dataset is, where it comes from, and how its rows are divided.

`load_dataset(name)` is the way in; a dataset's family is one file here, named in
`registry.DATASETS`.
"""
