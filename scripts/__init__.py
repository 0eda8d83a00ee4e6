"""What the Makefile calls, and the hooks of the documentation site."""
