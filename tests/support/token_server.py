"""A small identity provider on loopback: tokens by OAuth's client credentials, and its keys."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.support.certificates import Certificate
from tests.support.http_server import Handler, served

AUDIENCE = "kafka"


class TokenServer:
    """Gives a client that knows its secret a token in which it is the subject.

    Attributes:
        clients: Secret of each client; tests may add some.
        late: Clients whose tokens have expired when they get them.
        scopes: The scopes that were asked for, in order.
        is_broken: Whether it answers each request for a token with an error of its own.
        audience: Whom its tokens are for.
    """

    def __init__(self) -> None:
        """Make its key; ``started`` says where it listens."""
        self.url = self.jwks_url = ""
        self.clients: dict[str, str] = {}
        self.late: set[str] = set()
        self.scopes: list[str] = []
        self.is_broken = False
        self.audience = AUDIENCE
        self._key = RSAKey.generate_key(2048, {"kid": "of-the-tests", "alg": "RS256"})

    @classmethod
    @contextmanager
    def started(cls, certificate: Certificate | None = None) -> Iterator[TokenServer]:
        """Answer as long as the block lasts; by HTTPS with a certificate."""
        tokens = cls()
        with served(partial(_Handler, tokens), certificate) as address:
            tokens.url, tokens.jwks_url = f"{address}/token", f"{address}/jwks"
            yield tokens

    @property
    def keys(self) -> dict[str, object]:
        """The public key by which brokers check tokens."""
        return {"keys": [self._key.as_dict(private=False)]}

    def act_for(self, other: TokenServer) -> None:
        """Sign as another does, for the same clients."""
        self._key, self.clients = other._key, other.clients

    def token(self, client: str, scope: str, *, seconds: int = 3600) -> str:
        """Sign a token; one of negative ``seconds`` has expired."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": client,
            "aud": self.audience,
            "scope": scope,
            "iat": now - 7200,
            "exp": now + seconds,
        }
        return jwt.encode({"alg": "RS256", "kid": "of-the-tests"}, claims, self._key)


class _Handler(Handler):
    def __init__(self, tokens: TokenServer, *arguments: object) -> None:
        self._tokens = tokens
        super().__init__(*arguments)  # type: ignore[arg-type]

    def get(self) -> None:
        self._answer(200, self._tokens.keys)

    def post(self) -> None:
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        login = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic "))
        client, _, secret = login.decode().partition(":")
        scope = " ".join(body.get("scope", ()))
        self._tokens.scopes.append(scope)
        if self._tokens.is_broken:
            self._answer(503, {"error": "temporarily_unavailable"})
        elif body.get("grant_type") != ["client_credentials"]:
            self._answer(400, {"error": "unsupported_grant_type"})
        elif self._tokens.clients.get(client) != secret:
            self._answer(401, {"error": "invalid_client"})
        else:
            seconds = -3600 if client in self._tokens.late else 3600
            token = self._tokens.token(client, scope, seconds=seconds)
            self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": 3600})

    def _answer(self, status: int, content: object) -> None:
        self.answer(status, json.dumps(content).encode())
