"""How fast the package is, against the peer, the raw engines and the limit.

One module per question, `bench_<name>.py`, whose docstring says what is compared and what the target is.
Contenders run in processes of their own (`workers/`, `peer/`), take turns within one run, and have to end
with the same rows. `python -m benchmarks --help` says how to run them.
"""
