"""The boundary where errors of this package become Dagster failures."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.run_identity import in_a_run
from floe_dagster_iceberg.secrets import quotes_data, scrub_exception


@contextmanager
def dagster_failures(context: dg.OutputContext | dg.InputContext) -> Iterator[None]:
    """Raise errors of this package as `Failure`, so that only retryable ones are retried.

    Outside a run, as in a unit test of an IO manager, the error itself is raised.
    """
    try:
        yield
    except FloeStorageError as error:
        if not in_a_run(context):
            raise
        raise to_failure(error) from error
    except BaseException as error:
        # Dagster stores the message: libraries quote data in theirs, the user's own code is left alone.
        if quotes_data(error):
            scrub_exception(error)
        raise


def to_failure(error: FloeStorageError) -> dg.Failure:
    """Return the Dagster failure of an error; it allows retries if the error is retryable."""
    return dg.Failure(
        description=str(error),
        metadata={
            "iceberg/error": dg.MetadataValue.text(type(error).__name__),
            "iceberg/retryable": dg.MetadataValue.bool(error.retryable),
        },
        allow_retries=error.retryable,
    )
