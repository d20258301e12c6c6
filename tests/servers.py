"""Web servers on this machine that answer as a test says."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class WebServer:
    """Answers by `answer`, which is given method, path, headers and body of a request.

    It returns a status, headers and a body. With a `context` the server speaks TLS.
    """

    def __init__(self, answer, context=None):
        class Handler(BaseHTTPRequestHandler):
            def _any(self):
                given = self.rfile.read(int(self.headers["Content-Length"] or 0))
                status, headers, body = answer(self.command, self.path, self.headers, given)
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_HEAD = do_POST = do_OPTIONS = _any  # noqa: N815

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.address = f"{scheme}://localhost:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
