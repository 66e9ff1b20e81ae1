"""boto3's clients with timeouts, retries and a user agent for this program."""

from __future__ import annotations

from typing import Any

from s1_mini.extras import require
from s1_mini.version import __version__


class Clients:
    """Clients of one account and region, each created on first use; boto3 finds credentials, region and endpoints."""

    def __init__(self, region: str | None = None, profile: str | None = None) -> None:
        require("aws", "calling AWS")
        import boto3
        from botocore.config import Config

        self._session = boto3.Session(region_name=region, profile_name=profile)
        self._config = Config(
            retries={"mode": "standard"},  # three tries, or AWS_MAX_ATTEMPTS
            connect_timeout=10,
            read_timeout=70,  # a real-time call may take 60 s
            user_agent_extra=f"s1-mini/{__version__}",
        )
        self._clients: dict[str, Any] = {}

    @property
    def region(self) -> str | None:
        return self._session.region_name

    def credentials(self) -> Any:
        """Return the current access key, secret key and session token.

        Raises an error of botocore, such as `NoCredentialsError`.
        """
        from botocore.exceptions import NoCredentialsError

        found = self._session.get_credentials()
        if found is None:
            raise NoCredentialsError
        return found.get_frozen_credentials()

    def __getitem__(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._session.client(service, config=self._config)
        return self._clients[service]
