"""The only caller of a catalog's commit."""
