"""A lakehouse of real flights: raw files into bronze, joined in silver, answers in gold. No asset knows storage."""
