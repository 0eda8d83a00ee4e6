"""Real servers for the tests: PostgreSQL, S3, an Iceberg REST catalog, an OAuth2 server, a gateway.

The rule of this folder: a server listens on loopback at a free port, is waited for with an end, is stopped
by its own process id, and goes when the process that started it is gone, however that went. Binaries come
inside wheels, jars through PySpark's Ivy into the user's cache folder (`downloads`).
"""
