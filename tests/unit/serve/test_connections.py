"""Connections of slow clients."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from rlvr.http_server import patient_protocol

pytestmark = pytest.mark.slow

HEAD_S = 0.3
HEAD = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def talk(*pieces: bytes, pause_s: float) -> bytes:
    """Answer to pieces sent with pauses between them, until the server closes the connection."""
    protocol = patient_protocol(HEAD_S)
    config = uvicorn.Config(answer, http=protocol, lifespan="off", log_config=None)
    config.load()
    loop = asyncio.get_running_loop()
    made = await loop.create_server(
        lambda: protocol(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
    )
    async with made:
        reader, writer = await asyncio.open_connection(*made.sockets[0].getsockname())
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause_s)
        heard = b""
        try:
            async with asyncio.timeout(5 * HEAD_S):
                while data := await reader.read(1000):
                    heard += data
                heard += b"CLOSED"
        except TimeoutError:
            heard += b"OPEN"
        except ConnectionError:
            heard += b"CLOSED"
        writer.close()
        return heard


@pytest.mark.parametrize(
    "pieces", [(), (b"GET ",), (HEAD[:20], *(HEAD[i : i + 1] for i in range(20, 36))), (HEAD, HEAD[:9])]
)
def test_an_unfinished_head_closes_the_connection(pieces):
    assert asyncio.run(talk(*pieces, pause_s=HEAD_S / 10)).endswith(b"CLOSED")


def test_a_finished_request_keeps_the_connection():
    heard = asyncio.run(talk(HEAD, HEAD, HEAD, pause_s=HEAD_S / 2))
    assert heard.count(b"200 OK") == 3
    assert heard.endswith(b"OPEN")


def test_a_head_without_end_is_refused():
    heard = asyncio.run(talk(HEAD[:-2] + b"x: " + b"y" * 200_000, pause_s=0))
    assert b"400 Bad Request" in heard or heard == b"CLOSED"


def test_a_body_that_is_no_http_gets_no_second_answer(logged):
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    heard = asyncio.run(talk(head, b"no chunk\r\n", pause_s=HEAD_S / 10))
    assert heard.count(b"HTTP/1.1") == 1
    assert heard.endswith(b"CLOSED")
    assert "Fatal error" not in logged.getvalue()
