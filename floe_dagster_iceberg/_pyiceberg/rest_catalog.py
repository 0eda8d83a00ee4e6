"""PyIceberg's REST catalog with timeouts, safe retries and OAuth2 client credentials.

A request that may have reached the server is retried only if it is idempotent: GET and HEAD. Others are retried only
if the server rejected them unread (429), or if there was no connection.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import pydantic
from pyiceberg import exceptions as pyiceberg_errors
from pyiceberg.catalog import rest
from pyiceberg.catalog.rest.auth import AuthManager, AuthManagerAdapter, NoopAuthManager
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableRequest, StagedTable, Table, TableIdentifier
from pyiceberg.typedef import EMPTY_DICT
from requests import PreparedRequest, Response, Session, exceptions as http_errors
from requests.adapters import BaseAdapter
from requests.exceptions import RequestException
from tenacity import RetryCallState, Retrying, stop_after_attempt, wait_exponential, wait_random
from urllib3.exceptions import MaxRetryError, NewConnectionError

from floe_dagster_iceberg._pyiceberg.file_io import with_shared_clients
from floe_dagster_iceberg._pyiceberg.foreign_types import parse_metadata
from floe_dagster_iceberg._pyiceberg.metadata_errors import to_unsupported_error
from floe_dagster_iceberg._pyiceberg.transaction import TableChange
from floe_dagster_iceberg.errors import CatalogAuthenticationError, CatalogConnectionError, EngineCapabilityError
from floe_dagster_iceberg.models import RetryConfig
from floe_dagster_iceberg.models.identifiers import join_parts
from floe_dagster_iceberg.secrets import remember_secret, scrub_exception
from floe_dagster_iceberg.telemetry import Telemetry, attributes as attrs

_TOO_MANY_REQUESTS = 429
_UNAVAILABLE = 503
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Load balancers drop idle connections silently; a request sent on one of them may or may not arrive.
_LONGEST_IDLE_SECONDS = 30.0


@dataclass(frozen=True)
class HttpPolicy:
    """Timeouts and retries of HTTP requests."""

    connect_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 60.0
    total_timeout_seconds: float = 180.0
    retry: RetryConfig = field(default_factory=RetryConfig)


class BoundedAdapter(BaseAdapter):
    """Sends through another adapter, within the bounds of a policy."""

    def __init__(
        self,
        inner: BaseAdapter,
        policy: HttpPolicy,
        *,
        repeat_all: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self._inner, self._policy, self._repeat_all = inner, policy, repeat_all
        self._clock, self._sleep = clock, sleep
        self._last_used = clock()

    def send(self, request: PreparedRequest, **options: Any) -> Response:  # type: ignore[override]
        """Send a request, with safe retries, until the policy's attempts or time are used up."""
        deadline = self._clock() + self._policy.total_timeout_seconds
        is_safe = self._repeat_all or request.method in _SAFE_METHODS
        out_of_attempts = stop_after_attempt(self._policy.retry.max_attempts)
        options.pop("timeout", None)
        attempts = Retrying(
            retry=lambda state: _is_worth_repeating(_outcome(state), is_safe=is_safe),
            wait=self._wait,
            stop=lambda state: out_of_attempts(state) or self._clock() + state.upcoming_sleep >= deadline,
            before_sleep=_close_response,
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
            sleep=self._sleep,
        )
        response: Response = attempts(self._attempt, request, deadline, options)
        return response

    def close(self) -> None:
        self._inner.close()

    def _attempt(self, request: PreparedRequest, deadline: float, options: dict[str, Any]) -> Response:
        now = self._clock()
        if now - self._last_used > _LONGEST_IDLE_SECONDS:
            self._inner.close()
        left = max(deadline - now, 0.001)
        timeout = (min(self._policy.connect_timeout_seconds, left), min(self._policy.read_timeout_seconds, left))
        try:
            return self._inner.send(request, timeout=timeout, **options)
        finally:
            self._last_used = self._clock()

    def _wait(self, state: RetryCallState) -> float:
        """Seconds until the next attempt: exponential, and no less than the server asks for."""
        outcome, limits = _outcome(state), self._policy.retry
        header = outcome.headers.get("Retry-After", "") if isinstance(outcome, Response) else ""
        asked = float(header) if header.isdecimal() else 0.0
        grown = wait_exponential(limits.initial_wait_seconds) + wait_random(0, limits.jitter_seconds)
        return min(max(asked, grown(state)), limits.max_wait_seconds)


def bound_session(session: Session, policy: HttpPolicy, *, repeat_all: bool = False) -> Session:
    """Apply a policy to every adapter of a session, and return the session."""
    for prefix, adapter in list(session.adapters.items()):
        session.mount(prefix, BoundedAdapter(adapter, policy, repeat_all=repeat_all))
    return session


def never_sent(error: BaseException) -> bool:
    """Whether the request cannot have reached the server: there was no connection."""
    reason: Any = error.args[0] if error.args else None
    if isinstance(reason, MaxRetryError):
        reason = reason.reason
    return isinstance(error, http_errors.ConnectTimeout) or isinstance(reason, NewConnectionError)


def _outcome(state: RetryCallState) -> Response | BaseException:
    if state.outcome is None:
        raise ValueError("The attempt has not ended.")
    return state.outcome.exception() or state.outcome.result()


def _close_response(state: RetryCallState) -> None:
    if isinstance(outcome := _outcome(state), Response):
        outcome.close()


def _is_worth_repeating(outcome: Response | BaseException, *, is_safe: bool) -> bool:
    if isinstance(outcome, Response):
        return outcome.status_code == _TOO_MANY_REQUESTS or (is_safe and outcome.status_code == _UNAVAILABLE)
    # A certificate that is invalid will still be invalid a second later.
    if not isinstance(outcome, RequestException) or isinstance(outcome, http_errors.SSLError):
        return False
    broken = (http_errors.ConnectionError, http_errors.Timeout, http_errors.ChunkedEncodingError)
    return never_sent(outcome) or (is_safe and isinstance(outcome, broken))


_telemetry = Telemetry()
_ACCESS_DELEGATION = "X-Iceberg-Access-Delegation"
_REFUSED_TOKEN = (401, 419)
_REFRESH_MARGIN_SECONDS = 60.0
# The client's own settings: in a cluster the server knows the storage by another address.
_ADDRESSING = ("s3.endpoint", "s3.force-virtual-addressing", "gcs.service.host", "adls.account-host", "py-io-impl")

# The only words of a token endpoint's response that are safe to repeat.
_BAD_CLIENT = ("invalid_client", "unauthorized_client", "invalid_grant")
_OAUTH_ERRORS = (*_BAD_CLIENT, "invalid_request", "unsupported_grant_type", "invalid_scope")


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
        """The Authorization header, with a valid token."""
        with self._lock:
            if self._token is None or self._clock() >= self._expires_at:
                self._renew()
            return f"Bearer {self._token}"

    def forget(self) -> None:
        """Do not use the current token again."""
        with self._lock:
            self._token = None

    def _renew(self) -> None:
        attributes = {attrs.CATALOG: self._catalog, attrs.SCOPES: self._form.get("scope", "")}
        with _telemetry.operation("authenticate", attributes, prefix=self._system, is_logged=False):
            token = self._ask_for_token()
        remember_secret(token.access_token)
        lifetime = float("inf") if token.expires_in is None else token.expires_in
        self._token = token.access_token
        self._expires_at = self._clock() + lifetime - min(_REFRESH_MARGIN_SECONDS, lifetime / 2)

    def _ask_for_token(self) -> _Token:
        # Asking twice for a token does no harm, so every failure may be retried.
        with bound_session(Session(), self._policy, repeat_all=True) as session:
            response = session.post(self._token_url, data={"grant_type": "client_credentials", **self._form})
        if not response.ok:
            raise self._refusal(response)
        try:
            return _Token.model_validate_json(response.content)
        except pydantic.ValidationError:
            # Not chained: Pydantic quotes the input, here possibly a token.
            raise CatalogConnectionError(self._catalog, reason="the token endpoint's response has no token") from None

    def _refusal(self, response: Response) -> CatalogAuthenticationError | CatalogConnectionError:
        reason = f"HTTP {response.status_code} from the token endpoint"
        if response.status_code >= 500 or response.status_code in (404, 429):  # noqa: PLR2004 - HTTP statuses
            return CatalogConnectionError(self._catalog, reason=reason)
        code = next((word for word in _OAUTH_ERRORS if word in response.text), None)
        return CatalogAuthenticationError(self._catalog, reason=f"{reason} ({code})" if code else reason)


# What servers respond to a registration that is to overwrite: those that know the flag and cannot do it, and those that
# ignore it. The plain class stands for all other statuses, such as 406 and 422.
_NOT_IMPLEMENTED = (
    pyiceberg_errors.TableAlreadyExistsError,
    NotImplementedError,
    pyiceberg_errors.BadRequestError,
    pyiceberg_errors.RESTError,
)


_METADATA_SUFFIX = ".metadata.json"
_COMMIT_TRANSACTION_PATH = "transactions/commit"
_COMMIT_TRANSACTION = rest.Endpoint(
    http_method=rest.HttpMethod.POST, path=f"{rest.API_PREFIX}/{_COMMIT_TRANSACTION_PATH}"
)
# As PyIceberg has them for the commit of one table.
_RESPONSES_TO_COMMITS: dict[int, type[Exception]] = {
    409: pyiceberg_errors.CommitFailedException,
    **dict.fromkeys((500, 502, 504), pyiceberg_errors.CommitStateUnknownException),
}


@contextmanager
def _unknown_unless_refused() -> Iterator[None]:
    """Report a failed commit as unknown, unless the server refused it or was never reached."""
    try:
        yield
    except (pyiceberg_errors.ServerError, pyiceberg_errors.ServiceUnavailableError, pydantic.ValidationError) as error:
        raise pyiceberg_errors.CommitStateUnknownException(f"{type(error).__name__} in response to a commit") from error
    except RequestException as error:
        if never_sent(error):
            raise
        raise pyiceberg_errors.CommitStateUnknownException(f"{type(error).__name__} during a commit") from error


class FloeRestCatalog(rest.RestCatalog):
    """PyIceberg's REST catalog; requests are bounded, and a commit whose outcome is unknown is reported as such."""

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
        """Commit; unless the server refused it or was never reached, a failure leaves the outcome unknown."""
        with _unknown_unless_refused():
            return super().commit_table(table, requirements, updates)

    @property
    def commits_tables_together(self) -> bool:
        """Whether the server says that it can commit to several tables at once."""
        return _COMMIT_TRANSACTION in self._supported_endpoints

    def commit_tables(self, changes: Sequence[TableChange]) -> None:
        """Commit changes of several tables in one request; the server commits all of them or none.

        Raises:
            CommitFailedException: The server refused them; nothing was committed.
            CommitStateUnknownException: They may have been committed.
        """
        requests = [
            CommitTableRequest(
                identifier=TableIdentifier(namespace=list(table.name()[:-1]), name=table.name()[-1]),
                requirements=requirements,
                updates=updates,
            ).model_dump_json()
            for table, requirements, updates in changes
        ]
        with _unknown_unless_refused():
            response = self._session.post(
                self.url(_COMMIT_TRANSACTION_PATH, prefixed=True),
                data=f'{{"table-changes": [{", ".join(requests)}]}}'.encode(),
            )
            try:
                response.raise_for_status()
            except http_errors.HTTPError as error:
                _handle_non_200_response(error, _RESPONSES_TO_COMMITS)

    def load_table(self, identifier: Any) -> Table:
        """Load a table, also one with columns of types that PyIceberg does not know.

        Raises:
            UnsupportedMetadataError: The server has it, and its metadata cannot be parsed for another reason.
        """
        try:
            loaded: Table = super().load_table(identifier)
        except pydantic.ValidationError as error:
            if not any(entry["loc"][:1] == ("metadata",) for entry in error.errors(include_input=False)):
                raise
            return self._load_foreign_types(identifier, scrub_exception(error))
        return loaded

    def load_newest_snapshots(self, identifier: Any) -> Table:
        """Load a table with no snapshots but those of branches and tags; a server may send all of them anyway.

        For reading only: the table does not know its history.
        """
        # PyIceberg has the parameter as a setting of the whole catalog.
        lean = copy(self)
        lean.properties = {**self.properties, rest.SNAPSHOT_LOADING_MODE: "refs"}
        table = lean.load_table(identifier)
        table.catalog = self
        return table

    def list_namespaces(self, namespace: Any = ()) -> list[tuple[str, ...]]:
        """List the namespaces below one; PyIceberg encodes its name twice, and servers do not find, say, 'my data'."""
        parent = self.identifier_to_tuple(namespace)
        if all(quote(level, safe="") == level for level in parent):
            return list(super().list_namespaces(namespace))
        found: list[tuple[str, ...]] = []
        # The path of a child has the namespace as the server separates its levels.
        params = {"parent": unquote(self._split_identifier_for_path((*parent, "child"))["namespace"])}
        while True:
            response = self._session.get(self.url(rest.Endpoints.list_namespaces), params=params)
            response.raise_for_status()
            page = rest.ListNamespaceResponse.model_validate_json(response.text)
            found += page.namespaces
            if not page.next_page_token:
                return found
            params["pageToken"] = page.next_page_token

    def table_exists(self, identifier: Any) -> bool:
        """Whether the server has a table; also one whose metadata file is missing, which servers deny at first."""
        return bool(super().table_exists(identifier)) or self._lacks_metadata(identifier, _METADATA_SUFFIX)

    def previous_metadata_location(self, identifier: tuple[str, ...], current: str) -> str | None:
        """None: the protocol has no such request."""

    def replace_metadata_location(self, identifier: tuple[str, ...], *, expected: str, location: str) -> None:
        """Point the entry of a table to another metadata file, by a registration that overwrites.

        Servers that do not implement the flag refuse the request, as for any table that exists. The protocol has no
        condition for it, so the table is loaded right before.

        Raises:
            CommitFailedException: The entry does not point to `expected` any more; nothing was changed.
            EngineCapabilityError: The server cannot do that; nothing was changed.
        """
        if not self._lacks_metadata(identifier, expected):
            raise pyiceberg_errors.CommitFailedException("Table has been updated by another process")
        try:
            self.register_table(identifier, location, overwrite=True)
        except (pyiceberg_errors.TableAlreadyExistsError, NotImplementedError, pyiceberg_errors.RESTError) as error:
            if type(error) not in _NOT_IMPLEMENTED:
                raise
            raise EngineCapabilityError(
                f"Catalog '{self.name}' cannot replace the entry of an existing table ({type(error).__name__}).",
                engine="rest",
                table=join_parts(identifier),
            ) from scrub_exception(error)

    def purge_table(self, identifier: Any) -> None:
        """Drop a table with its files; Polaris refuses that unless its catalog allows it."""
        try:
            super().purge_table(identifier)
        except pyiceberg_errors.ForbiddenError as error:
            name = join_parts(self.identifier_to_tuple(identifier))
            raise EngineCapabilityError(
                f"Catalog '{self.name}' refuses to purge '{name}' (HTTP 403). Drop it without purge: its files stay; "
                "or allow it: the catalog property 'polaris.config.drop-with-purge.enabled' in Polaris, and the "
                "privilege to drop with purge.",
                engine="rest",
                table=name,
            ) from error

    def _lacks_metadata(self, identifier: Any, location: str) -> bool:
        """Whether the server cannot load a table because of a metadata file of this location or suffix."""
        try:
            self.load_table(identifier)
        except (pyiceberg_errors.NoSuchTableError, pyiceberg_errors.ServerError) as error:
            return location in str(error)
        return False

    def _load_foreign_types(self, identifier: Any, cause: BaseException | None) -> Table:
        """Load a table whose metadata PyIceberg cannot parse; it has not kept the response.

        Raises:
            UnsupportedMetadataError: Not only because of the types of columns.
        """
        path, parts = self._split_identifier_for_path(identifier), self.identifier_to_tuple(identifier)
        document = self._session.get(self.url(rest.Endpoints.load_table, **path)).json()
        metadata = document.get("metadata")
        with suppress(ValueError, pyiceberg_errors.ValidationError):
            parsed = rest.TableResponse.model_validate({**document, "metadata": parse_metadata(metadata)})
            table: Table = self._response_to_table(parts, parsed)
            return table
        location = document.get("metadata-location")
        raise to_unsupported_error(join_parts(parts), metadata, metadata_location=location) from cause

    def _create_session(self) -> Session:
        session = super()._create_session()
        # By default PyIceberg sends "Bearer None" if it has neither token nor client.
        if self._client_credentials is not None or "token" not in self.properties:
            self._auth_manager = self._client_credentials or NoopAuthManager()
            session.auth = AuthManagerAdapter(self._auth_manager)
        if not self._delegate_access:
            session.headers.pop(_ACCESS_DELEGATION, None)
        session.hooks["response"].append(self._on_response)
        return bound_session(session, self._policy)

    def _load_file_io(self, properties: Any = None, location: str | None = None) -> FileIO:
        merged = {**(properties or {}), **self._kept_storage_properties}
        return with_shared_clients(super()._load_file_io(merged, location), location)

    def _response_to_staged_table(
        self, identifier_tuple: tuple[str, ...], table_response: rest.TableResponse
    ) -> StagedTable:
        # PyIceberg looks for vended credentials by the metadata file, which a new table does not have.
        location = table_response.metadata.location
        vended = self._resolve_storage_credentials(table_response.storage_credentials, location)
        config = {**table_response.config, **vended}
        return super()._response_to_staged_table(identifier_tuple, table_response.model_copy(update={"config": config}))

    def _on_response(self, response: Response, *_: Any, **__: Any) -> None:
        if response.status_code not in _REFUSED_TOKEN:
            return
        if self._client_credentials is None:
            # PyIceberg would retry, which is useless without a way to get another token.
            response.close()
            raise CatalogAuthenticationError(str(self.name), reason=f"HTTP {response.status_code}")
        self._client_credentials.forget()


class PolarisCatalog(FloeRestCatalog):
    """The same for Polaris, whose own requests appear in traces under its name."""

    def create_namespace(self, namespace: Any, properties: Any = EMPTY_DICT) -> None:
        levels = self.identifier_to_tuple(namespace)
        # Names of properties only: their values are the user's.
        attributes = {
            attrs.CATALOG: self.name,
            attrs.NAMESPACE: join_parts(levels),
            attrs.PROPERTY_NAMES: sorted(properties),
        }
        with _telemetry.operation("create_namespace", attributes, prefix="polaris", is_logged=False):
            super().create_namespace(namespace, properties)


def _is_storage_key(key: str) -> bool:
    return key == "py-io-impl" or key.startswith(("s3.", "gcs.", "adls.", "client."))
