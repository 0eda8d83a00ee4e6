"""Rows become files and one commit."""
