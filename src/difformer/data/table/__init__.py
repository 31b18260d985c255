"""Tables of users: files, cells, typed columns, labels."""
