"""PyIceberg's REST catalog with bounded HTTP.

`RestCatalog` offers no way to set time-outs, so some of its private members are used:
`_create_session`, `_load_file_io` and `_response_to_staged_table` are extended,
`_resolve_storage_credentials` is called, `_auth_manager` is assigned.
`tests/contract/test_pyiceberg_contract.py` fails when PyIceberg changes one of them.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import pydantic
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.catalog.rest.auth import AuthManager, AuthManagerAdapter, NoopAuthManager
from pyiceberg.exceptions import CommitStateUnknownException, ForbiddenError, ServerError, ServiceUnavailableError
from pyiceberg.io import FileIO
from pyiceberg.table import StagedTable
from pyiceberg.typedef import EMPTY_DICT
from requests import Response, Session
from requests.exceptions import RequestException

from floe_dagster_iceberg.errors import CatalogAuthenticationError, CatalogConnectionError, EngineCapabilityError
from floe_dagster_iceberg.plugins.http import HttpPolicy, bound_session, never_sent
from floe_dagster_iceberg.secrets import remember_secret
from floe_dagster_iceberg.telemetry import Telemetry, attributes as names

_telemetry = Telemetry()

_ACCESS_DELEGATION = "X-Iceberg-Access-Delegation"
_REFUSED_TOKEN = (401, 419)
_REFRESH_MARGIN_SECONDS = 60.0
# Where the files are is the client's own knowledge: in a cluster the server knows their machine by another name.
_ADDRESSING = ("s3.endpoint", "s3.force-virtual-addressing", "gcs.service.host", "adls.account-host", "py-io-impl")
# The only words of a token endpoint's answer that are safe to repeat.
_OAUTH_ERRORS = frozenset(
    {
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
    }
)


class _Token(pydantic.BaseModel):
    access_token: str
    expires_in: float | None = None


class ClientCredentials(AuthManager):
    """OAuth2 client credentials: one token for all threads, renewed before it expires or when it is refused."""

    def __init__(
        self,
        catalog: str,
        *,
        token_url: str,
        form: dict[str, str],
        policy: HttpPolicy,
        system: str = "iceberg",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog, self._token_url, self._form = catalog, token_url, form
        self._policy, self._system, self._clock = policy, system, clock
        self._lock = threading.Lock()
        self._token: str | None = None
        self._expires_at = 0.0

    def auth_header(self) -> str:
        """The Authorization header, with a token that is still good."""
        with self._lock:
            if self._token is None or self._clock() >= self._expires_at:
                self._renew()
            return f"Bearer {self._token}"

    def forget(self) -> None:
        """Do not use the current token again."""
        with self._lock:
            self._token = None

    def _renew(self) -> None:
        told = {names.CATALOG: self._catalog, names.SCOPES: self._form.get("scope", "")}
        with _telemetry.operation("authenticate", told, prefix=self._system, is_logged=False):
            token = self._ask_for_token()
        remember_secret(token.access_token)
        lifetime = float("inf") if token.expires_in is None else token.expires_in
        self._token = token.access_token
        self._expires_at = self._clock() + lifetime - min(_REFRESH_MARGIN_SECONDS, lifetime / 2)

    def _ask_for_token(self) -> _Token:
        response = self._ask()
        if not response.ok:
            raise self._refusal(response)
        try:
            return _Token.model_validate_json(response.content)
        except pydantic.ValidationError:
            # Not chained: Pydantic quotes what it refused, here possibly a token.
            raise CatalogConnectionError(self._catalog, reason="the token endpoint's answer holds no token") from None

    def _ask(self) -> Response:
        # Asking twice for a token does no harm, so every failure may be repeated.
        with bound_session(Session(), self._policy, repeat_all=True) as session:
            return session.post(self._token_url, data={"grant_type": "client_credentials", **self._form})

    def _refusal(self, response: Response) -> CatalogAuthenticationError | CatalogConnectionError:
        reason = f"HTTP {response.status_code} from the token endpoint"
        if response.status_code >= 500 or response.status_code in (404, 429):  # noqa: PLR2004 - HTTP statuses
            return CatalogConnectionError(self._catalog, reason=reason)
        code = next((word for word in _OAUTH_ERRORS if word in response.text), None)
        return CatalogAuthenticationError(self._catalog, reason=f"{reason} ({code})" if code else reason)


class FloeRestCatalog(RestCatalog):
    """PyIceberg's REST catalog; requests are bounded, and an unclear commit is reported as such."""

    def __init__(
        self,
        name: str,
        *,
        policy: HttpPolicy,
        auth: ClientCredentials | None = None,
        delegate_access: bool = True,
        properties: dict[str, str],
    ) -> None:
        self._policy, self._client_credentials, self._delegate_access = policy, auth, delegate_access
        kept = properties if not delegate_access else {key: properties[key] for key in _ADDRESSING if key in properties}
        self._kept_storage_properties = {key: value for key, value in kept.items() if _is_storage_key(key)}
        super().__init__(name, **properties)

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        """Commit; unless the server clearly refused or was never reached, a failure leaves the outcome unknown."""
        try:
            return super().commit_table(table, requirements, updates)
        except (ServerError, ServiceUnavailableError, pydantic.ValidationError) as error:
            raise CommitStateUnknownException(f"{type(error).__name__} in answer to a commit") from error
        except RequestException as error:
            if never_sent(error):
                raise
            raise CommitStateUnknownException(f"{type(error).__name__} during a commit") from error

    def purge_table(self, identifier: Any) -> None:
        """Drop a table with its files; Polaris refuses that unless its catalog allows it."""
        try:
            super().purge_table(identifier)
        except ForbiddenError as error:
            name = ".".join(self.identifier_to_tuple(identifier))
            raise EngineCapabilityError(
                f"Catalog '{self.name}' refuses to purge '{name}' (HTTP 403). Drop it without purge: its files stay; "
                "or allow it: the catalog property 'polaris.config.drop-with-purge.enabled' in Polaris, and the "
                "privilege to drop with purge.",
                engine="rest",
                table=name,
            ) from error

    def _create_session(self) -> Session:
        session = super()._create_session()
        # Left alone, PyIceberg sends "Bearer None" when it knows neither token nor client.
        if self._client_credentials is not None or "token" not in self.properties:
            self._auth_manager = self._client_credentials or NoopAuthManager()
            session.auth = AuthManagerAdapter(self._auth_manager)
        if not self._delegate_access:
            session.headers.pop(_ACCESS_DELEGATION, None)
        session.hooks["response"].append(self._on_response)
        return bound_session(session, self._policy)

    def _load_file_io(self, properties: Any = None, location: str | None = None) -> FileIO:
        return super()._load_file_io({**(properties or {}), **self._kept_storage_properties}, location)

    def _response_to_staged_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> StagedTable:
        # PyIceberg looks for lent credentials by the metadata file, which a table that is yet to come has not.
        location = table_response.metadata.location
        lent = self._resolve_storage_credentials(table_response.storage_credentials, location)
        config = {**table_response.config, **lent}
        return super()._response_to_staged_table(identifier_tuple, table_response.model_copy(update={"config": config}))

    def _on_response(self, response: Response, *_: Any, **__: Any) -> None:
        if response.status_code not in _REFUSED_TOKEN:
            return
        if self._client_credentials is None:
            # PyIceberg would ask once more; without a way to get another token that is in vain.
            response.close()
            raise CatalogAuthenticationError(str(self.name), reason=f"HTTP {response.status_code}")
        self._client_credentials.forget()


class PolarisCatalog(FloeRestCatalog):
    """The same for Polaris, whose own requests show in traces under its name."""

    def create_namespace(self, namespace: Any, properties: Any = EMPTY_DICT) -> None:
        """Create a namespace."""
        levels = self.identifier_to_tuple(namespace)
        # Names of properties only: their values are the user's.
        told = {names.CATALOG: self.name, names.NAMESPACE: ".".join(levels), names.PROPERTY_NAMES: sorted(properties)}
        with _telemetry.operation("create_namespace", told, prefix="polaris", is_logged=False):
            super().create_namespace(namespace, properties)


def _is_storage_key(key: str) -> bool:
    return key == "py-io-impl" or key.startswith(("s3.", "gcs.", "adls.", "client."))
