"""Moto's S3 and Glue as a process of their own: ``python -P moto_server.py PORT``."""

import logging
import sys
import threading
from typing import Any

from moto import server
from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse
from moto.s3.responses import S3Response

_ONE_AT_A_TIME = threading.Lock()
_answer = S3Response._key_response
_update = GlueResponse.update_table


def _answer_alone(self: S3Response, *arguments: Any) -> Any:
    """Answer one request for an object after the other.

    S3 checks a condition and writes in one act; moto does the one and then the other, in threads.
    """
    with _ONE_AT_A_TIME:
        return _answer(self, *arguments)


def _update_version(self: GlueResponse) -> Any:
    """Update a table of Glue if it is at the version that is named, which moto does not look at."""
    named, name = self.parameters.get("VersionId"), self.parameters["TableInput"]["Name"]
    with _ONE_AT_A_TIME:
        table = self.glue_backend.get_table(self.parameters["DatabaseName"], name)
        if named not in (None, str(table._current_version)):
            message = f"Update table failed due to concurrent modifications: {named} is no more"
            raise JsonRESTError("ConcurrentModificationException", message)
        return _update(self)


if __name__ == "__main__":
    S3Response._key_response = _answer_alone  # type: ignore[assignment]
    GlueResponse.update_table = _update_version  # type: ignore[method-assign]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.main(["-H", "127.0.0.1", "-p", sys.argv[1]])
