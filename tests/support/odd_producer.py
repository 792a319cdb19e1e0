"""Records that only clients written in C can send."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import Final

import confluent_kafka

_LIBRARIES: Final = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
# What an argument of rd_kafka_producev is.
_END, _TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADER = 0, 1, 3, 4, 7, 9
_COPY: Final = 2


def send_with_header(address: str, topic: str, value: bytes, name: bytes) -> None:
    """Send a record with a header of any name to a topic's first partition."""
    (path,) = _LIBRARIES.glob("librdkafka*")
    library, said = ctypes.CDLL(str(path)), ctypes.create_string_buffer(500)
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = c_void_p
    options = c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(
        options, b"bootstrap.servers", address.encode(), said, c_size_t(len(said))
    )
    client = c_void_p(library.rd_kafka_new(c_int(0), options, said, c_size_t(len(said))))
    assert client, said.value
    try:
        failed = library.rd_kafka_producev(
            client,
            *(c_int(_TOPIC), c_char_p(topic.encode())),
            *(c_int(_PARTITION), c_int32(0)),
            *(c_int(_VALUE), c_char_p(value), c_size_t(len(value))),
            *(c_int(_FLAGS), c_int(_COPY)),
            *(c_int(_HEADER), c_char_p(name), c_char_p(b"x"), c_size_t(1)),
            c_int(_END),
        )
        assert not failed
        assert library.rd_kafka_flush(client, c_int(30_000)) == 0
    finally:
        library.rd_kafka_destroy(client)
