"""Who answers at a wrong address: a port that speaks something other than HTTP."""

import socket
import threading
from contextlib import contextmanager

GREETING = b"SSH-2.0-OpenSSH_9.2\r\n"


@contextmanager
def stranger():
    """The address of a server that says its greeting to everybody, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:  # closed
                    return
                with caller:
                    caller.recv(1 << 16)
                    caller.sendall(GREETING)

        threading.Thread(target=greet, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
