"""Settings of the web app: where it listens, and how people are known there; and of the API for `kubectl`.

A section of `fleet.settings.settings`, apart for its size.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from fleet.addresses import is_loopback
from fleet.settings.kinds import HostPort, Seconds
from fleet.settings.listener import ListenerSettings


class Access(StrEnum):
    """How people are known."""

    NONE = "none"
    TOKEN = "token"
    PROXY = "proxy"
    OIDC = "oidc"


class DashboardSettings(ListenerSettings):
    """The web app."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; anything but loopback needs `dashboard.access`."""
    port: int = Field(default=8050, ge=0, le=65535)
    """Port to listen on; 0 lets the system choose."""
    access: Access = Access.NONE
    """How people are known: none (everyone on this machine), token, proxy (by a header of the proxy), oidc."""
    rights_file: Path | None = None
    """Who may what, for every access but none: a TOML file, read again when it changes."""
    public_url: str | None = None
    """Address by which browsers reach the app, such as https://gpus.example.com; oidc needs it."""
    session_idle_seconds_max: Seconds = 3600
    """A session that is not used for so long ends."""
    session_seconds_max: Seconds = 43_200
    """A session ends so long after it began."""
    proxy_networks: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Addresses whose headers are believed."""
    proxy_user_header: str = Field(default="X-Forwarded-User", pattern=r"^[A-Za-z0-9-]{1,64}$")
    """Header in which the proxy says who somebody is."""
    proxy_groups_header: str = Field(default="X-Forwarded-Groups", pattern=r"^[A-Za-z0-9-]{1,64}$")
    """Header in which it says their groups, divided by commas."""
    oidc_issuer: str | None = None
    """The provider, such as https://sso.example.com/realms/main; its discovery document is read below it."""
    oidc_client_id: str | None = None
    """Name of this app at the provider."""
    oidc_client_secret_file: Path | None = None
    """File with the app's secret at the provider; none for a public client, which PKCE alone protects."""
    oidc_ca_file: Path | None = None
    """Authorities (PEM) that the provider's certificate is checked with; none for those of the machine."""
    oidc_name_claim: str = Field(default="preferred_username", min_length=1, max_length=128)
    """Claim of the ID token that names somebody; `sub` where it is absent."""
    oidc_groups_claim: str = Field(default="groups", min_length=1, max_length=128)
    """Claim that lists their groups."""
    oidc_scopes: tuple[str, ...] = ("openid", "profile", "groups")
    """What the provider is asked for."""

    @field_validator("proxy_networks")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            try:
                ip_network(text)
            except ValueError as exc:
                raise ValueError(f"expected networks such as 10.0.0.0/8: {exc}") from exc
        return value

    @field_validator("public_url", "oidc_issuer")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or parts.fragment
            or parts.username
        ):
            raise ValueError(f"expected an address such as https://gpus.example.com, got {value!r}")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError(
                f"expected https, got {value!r}: what is sent in the clear can be read and changed on the way"
            )
        return value.rstrip("/")

    @model_validator(mode="after")
    def _fits_together(self) -> DashboardSettings:
        if self.access is Access.NONE and not is_loopback(self.host):
            raise ValueError(
                f"access=none with host={self.host!r} would let everybody apply plans; listen on 127.0.0.1, or set "
                "access to token, proxy or oidc"
            )
        if self.access is not Access.NONE and self.rights_file is None:
            raise ValueError(f"access={self.access} needs rights_file: somebody must say who may what")
        if self.access is Access.OIDC:
            missing = [name for name in ("oidc_issuer", "oidc_client_id", "public_url") if getattr(self, name) is None]
            if missing:
                raise ValueError(f"access=oidc needs {', '.join(missing)}")
            if "openid" not in self.oidc_scopes:
                raise ValueError("oidc_scopes needs openid")
        return self


class UsageApiSettings(ListenerSettings):
    """What pods use and cost, served to the Kubernetes API server beside the web app: for `kubectl gputide top`."""

    listen: HostPort | None = None
    """HOST:PORT on which the API server asks; none: not served. Needs certificate, key, `front_proxy_names` and
    `client_ca_file`, the authority of the API server's front proxy."""
    front_proxy_names: tuple[Annotated[str, Field(min_length=1, max_length=253)], ...] = ()
    """Names that the certificate of the front proxy may have; one at least, since its authority may sign others'."""

    @model_validator(mode="after")
    def _is_guarded(self) -> UsageApiSettings:
        if self.listen is not None and (self.tls_certificate_file is None or self.client_ca_file is None):
            raise ValueError(
                f"listen={self.listen} needs tls_certificate_file, tls_key_file and client_ca_file: who shows no "
                "certificate of the API server's front proxy could ask in anybody's name"
            )
        if self.listen is not None and not self.front_proxy_names:
            raise ValueError(
                f"listen={self.listen} needs front_proxy_names, such as front-proxy-client: who holds another "
                "certificate of that authority could ask in anybody's name"
            )
        return self
