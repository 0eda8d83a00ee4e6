"""The command line `floe-iceberg`.

The rule of this folder: `app` knows options and exit codes, `reports` what is shown with
`--json`, and everything else turns one into the other. Work on tables is done by the layers below.
"""
