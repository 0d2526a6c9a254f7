"""A streaming /v1/completions in front of an engine that has only a Python API: one thread a request, one event a piece of text."""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve(generate, port):
    """Answers with what `generate(prompt, max_tokens)` yields; what it raises is the answer's last event."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def event(self, value):
            self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

        def do_POST(self):
            q = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                for text in generate(q["prompt"], q["max_tokens"]):
                    self.event({"choices": [{"index": 0, "text": text}]})
                self.wfile.write(b"data: [DONE]\n\n")
            except Exception as error:
                self.event({"error": str(error)})
            self.close_connection = True

        def log_message(self, *_):
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
