"""Moto's S3 as a process of its own: ``python -P moto_server.py PORT``."""

import logging
import sys
import threading
from typing import Any

from moto import server
from moto.s3.responses import S3Response

_ONE_AT_A_TIME = threading.Lock()
_answer = S3Response._key_response


def _answer_alone(self: S3Response, *arguments: Any) -> Any:
    """Answer one request for an object after the other.

    S3 checks a condition and writes in one act; moto does the one and then the other, in threads.
    """
    with _ONE_AT_A_TIME:
        return _answer(self, *arguments)


if __name__ == "__main__":
    S3Response._key_response = _answer_alone  # type: ignore[assignment]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.main(["-H", "127.0.0.1", "-p", sys.argv[1]])
