"""Which rows and files are meant: pure functions, metadata in, predicate out."""
