"""The one boundary where our errors become Dagster failures."""

from collections.abc import Iterator
from contextlib import contextmanager

from dagster import Failure, InputContext, MetadataValue, OutputContext

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.run_identity import in_a_run
from floe_dagster_iceberg.secrets import quotes_data, scrub_exception


@contextmanager
def dagster_failures(context: OutputContext | InputContext) -> Iterator[None]:
    """Raise errors of this package as `Failure`, so that hopeless ones are not retried.

    Outside a run, as in a unit test of an IO manager, the error itself is raised.
    """
    try:
        yield
    except FloeStorageError as error:
        if not in_a_run(context):
            raise
        raise to_failure(error) from error
    except BaseException as error:
        # What comes from the user's own code goes on as it is; Dagster would store what libraries quote.
        if quotes_data(error):
            scrub_exception(error)
        raise


def to_failure(error: FloeStorageError) -> Failure:
    """An error of this package as Dagster shows it; retried only where that may help."""
    return Failure(
        description=str(error),
        metadata={
            "iceberg/error": MetadataValue.text(type(error).__name__),
            "iceberg/retryable": MetadataValue.bool(error.retryable),
        },
        allow_retries=error.retryable,
    )
