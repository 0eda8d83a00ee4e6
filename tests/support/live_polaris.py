"""A running Polaris server, given by the environment; without one, the gateway stands in for it."""

import json
import os
from typing import Final

from floe_dagster_iceberg.resources import IcebergResource

URI: Final = "FLOE_TEST_POLARIS_URI"


def live_polaris() -> IcebergResource | None:
    """The server of the environment, or None when none is named.

    `FLOE_TEST_POLARIS_URI` is its address (`http://…/api/catalog`), `…_WAREHOUSE` the name of a catalog in it,
    `…_CLIENT_ID` and `…_CLIENT_SECRET` a principal that may create namespaces and tables there. `…_SCOPE` is
    PRINCIPAL_ROLE:ALL if not given. `…_STORAGE` holds settings of our s3 storage as JSON where the server vends
    no keys, or where its endpoint has another name from here; `{}` if not given.
    """
    if URI not in os.environ:
        return None
    given = {name: os.environ[f"FLOE_TEST_POLARIS_{name.upper()}"] for name in ("client_id", "client_secret")}
    return IcebergResource(
        catalog_type="polaris",
        catalog_uri=os.environ[URI],
        warehouse=os.environ["FLOE_TEST_POLARIS_WAREHOUSE"],
        scope=os.environ.get("FLOE_TEST_POLARIS_SCOPE", "PRINCIPAL_ROLE:ALL"),
        storage_type="s3",
        storage_properties=json.loads(os.environ.get("FLOE_TEST_POLARIS_STORAGE", "{}")),
        **given,
    )
