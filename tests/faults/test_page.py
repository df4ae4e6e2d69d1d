"""The page under load and abuse, over real connections on this machine, in a process of its own."""

import os
import subprocess
import sys

import pytest

from conftest import SOURCES

SCRIPT = """
import json, pathlib, queue, socket, sys, threading, time
from remanence.report.explore import server, serving
serving._PATIENCE = server._PATIENCE = 0.5
address = queue.Queue()
threading.Thread(target=lambda: serving.serve(ready=address.put), daemon=True).start()
port = int(address.get(timeout=60).rsplit(":", 1)[1].strip("/"))

def connection():
    made = socket.create_connection(("127.0.0.1", port)); made.settimeout(30)
    return made

def ask(head, body=b""):
    made = connection()
    made.sendall(f"{head}\\r\\nHost: 127.0.0.1:{port}\\r\\nConnection: close\\r\\n\\r\\n".encode() + body)
    found = b""
    while part := made.recv(65536):
        found += part
    return found.decode(errors="replace")

idle = [connection() for _ in range(200)]
slow = connection(); slow.sendall(b"GET / HTTP/1.1\\r\\nHo")
closed = sum(made.recv(1000) == b"" or True for made in (*idle, slow))
print("closed", closed)
print("page", ask("GET / HTTP/1.1").split("\\r\\n")[0])
print("lie", ask("POST /api/report HTTP/1.1\\r\\nContent-Length: 1000", b"{}"))
half = json.dumps({"target": "\\ud800"}).encode()
print("half", ask(f"POST /api/report HTTP/1.1\\r\\nContent-Length: {len(half)}", half))
large = b'{"target": "' + b"x" * 9_000_000 + b'"}'

def children():
    return [pid for each in pathlib.Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()]

def eventually(what):
    for _ in range(600):
        if what():
            return True
        time.sleep(0.05)
    return False

def heavy(noise):
    made = connection()
    question = f"noise_multiplier={noise}&delta=1e-9&sample_rate=0.0003&steps=900000&candidates=100000"
    made.sendall(f"GET /api/rate-curve?{question} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n".encode())
    return made

askers = [heavy(0.5 + place) for place in range(6)]  # two at a time, the others wait
print("working", eventually(lambda: len(children()) >= 2))
for asker in askers:
    asker.close()
print("ended", eventually(lambda: not children()))
small = "noise_multiplier=1.1&delta=1e-5&sample_rate=1&steps=10&candidates=100"
print("after", ask(f"GET /api/bound?{small} HTTP/1.1").split("\\r\\n")[0])
print("large", ask(f"POST /api/report HTTP/1.1\\r\\nContent-Length: {len(large)}", large))
"""


@pytest.fixture(scope="module")
def told():
    found = subprocess.run(  # noqa: S603
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )  # fmt: skip
    assert not found.returncode, found.stderr
    return found.stdout


def test_connections_that_say_nothing_are_closed_and_the_page_answers(told):
    assert "closed 201" in told
    assert "page HTTP/1.1 200 OK" in told


def test_a_body_that_lies_about_its_length_is_a_sentence(told):
    assert "The file did not arrive." in told


def test_half_of_a_character_is_a_sentence(told):
    part = told.split("half ")[1]
    assert part.startswith("HTTP/1.1 400")


def test_a_result_of_nine_megabytes_is_read(told):
    part = told.split("large ")[1]
    assert part.startswith("HTTP/1.1 400")
    assert "required property" in part, "refused for what is in it, not for its size"


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_work_ends_when_the_asker_leaves(told):
    assert "working True" in told
    assert "ended True" in told
    assert "after HTTP/1.1 200 OK" in told
