"""The command line `floe-iceberg`.

The rule of this folder: `app` has the options and exit codes, `reports` the models that `--json`
prints, and everything else turns one into the other. The layers below work on the tables.
"""
