"""The listening socket: what is accepted from it sends small events at once."""
import asyncio
import socket

from pyengine.serve.run import listen


def test_events_do_not_wait_for_acknowledgements():
    listener, url = listen("127.0.0.1", 0)

    async def nodelay():
        found = asyncio.get_running_loop().create_future()

        async def connected(reader, writer):
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            value = await asyncio.wait_for(found, 10)
            writer.close()
        return value

    assert url == f"http://127.0.0.1:{listener.getsockname()[1]}" and asyncio.run(nodelay())
