"""The page under load and abuse, over real connections on this machine, in a process of its own."""

import os
import subprocess
import sys

import pytest

from conftest import SOURCES

SCRIPT = """
import pathlib, queue, socket, sys, threading, time
from remanence.report.explore import server
address = queue.Queue()
threading.Thread(target=lambda: server.serve(ready=address.put), daemon=True).start()
port = int(address.get(timeout=60).rsplit(":", 1)[1].strip("/"))

def connection():
    made = socket.create_connection(("127.0.0.1", port)); made.settimeout(30)
    return made

def ask(head):
    made = connection()
    made.sendall(f"{head}\\r\\nHost: 127.0.0.1:{port}\\r\\nConnection: close\\r\\n\\r\\n".encode())
    found = b""
    while part := made.recv(65536):
        found += part
    return found.decode(errors="replace")

idle = [connection() for _ in range(200)]
idle[0].sendall(b"GET / HTTP/1.1\\r\\nHo")
print("crowded", ask("GET / HTTP/1.1").split("\\r\\n")[0])
for made in idle:
    made.close()
print("page", ask("GET / HTTP/1.1").split("\\r\\n")[0])

def children():
    return [pid for each in pathlib.Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()]

def used(pid):
    try:
        return sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    except FileNotFoundError:
        return 0

def computing():
    before = {pid: used(pid) for pid in children()}
    time.sleep(1)
    return [pid for pid in before if used(pid) > before[pid]]

def eventually(what):
    for _ in range(600):
        if what():
            return True
        time.sleep(0.05)
    return False

def heavy(noise):
    made = connection()
    question = f"noise_multiplier={noise}&delta=1e-9&sample_rate=0.5&steps=1000000&candidates=10&records_per_person=100"
    made.sendall(f"GET /api/rate-curve?{question} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n".encode())
    return made

askers = [heavy(0.5 + place) for place in range(6)]  # two at a time, the others wait
print("working", eventually(lambda: sum(used(pid) > 300 for pid in computing()) == 2))  # beyond their start
for asker in askers:
    asker.close()
print("ended", eventually(lambda: not computing()))
small = "noise_multiplier=1.1&delta=1e-5&sample_rate=1&steps=10&candidates=100"
print("after", ask(f"GET /api/bound?{small} HTTP/1.1").split("\\r\\n")[0])
"""


@pytest.fixture(scope="module")
def told():
    found = subprocess.run(  # noqa: S603
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )  # fmt: skip
    assert not found.returncode, found.stderr
    return found.stdout


def test_too_many_connections_are_turned_away_and_the_page_answers_when_they_leave(told):
    assert "crowded HTTP/1.1 503" in told
    assert "page HTTP/1.1 200 OK" in told


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_work_ends_when_the_asker_leaves(told):
    assert "working True" in told
    assert "ended True" in told
    assert "after HTTP/1.1 200 OK" in told
