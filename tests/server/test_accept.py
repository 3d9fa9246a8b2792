"""Connections that cannot be accepted now: beyond the limit, and when descriptors run out. They wait, and the server can still stop."""
import os
import resource
import select
import socket
import time
import unittest

from server_process import PATIENCE, Server, wait_until

RESERVE = 64  # connections beyond --max-connections that are answered and closed
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Accept(unittest.TestCase):
    def start(self, *flags):
        self.server = Server(*flags)
        self.addCleanup(self.server.__exit__, None, None, None)

    def connect(self, data=b""):
        s = socket.create_connection(("127.0.0.1", self.server.port), timeout=120)
        self.addCleanup(s.close)
        s.sendall(data)
        return s

    def descriptors(self):
        return [int(name) for name in os.listdir(f"/proc/{self.server.process.pid}/fd")]

    def cpu_seconds(self):
        with open(f"/proc/{self.server.process.pid}/stat") as f:
            user, system = f.read().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def crowd(self):
        """All that --max-connections 4 and the reserve have room for, and 30 clients more."""
        before = self.server.sockets()
        held = [self.connect() for _ in range(4 + RESERVE)]
        wait_until(lambda: self.server.sockets() >= before + len(held), step=0.01, says="all are held")
        waiting = [self.connect(REQUEST) for _ in range(30)]
        self.assertLessEqual(self.server.sockets(), before + len(held))
        return waiting

    def starve(self):
        """Clients of a server that may open four files more: those that it has answered, and the others."""
        pid, limit = self.server.process.pid, max(self.descriptors()) + 5
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
        clients = [self.connect(REQUEST) for _ in range(20)]
        self.server.wait_log("connections have to wait: Too many open files")
        end, taken = time.monotonic() + 20 * PATIENCE, []
        while len(taken) < 4 and time.monotonic() < end:
            taken = select.select(clients, [], [], 1)[0]
        self.assertIn(len(taken), range(4, 20))
        return taken, [s for s in clients if s not in taken]

    def test_beyond_the_reserve_clients_wait(self):
        self.start("--max-connections", "4")
        for s in self.crowd():
            self.assertIn(b"200 OK", s.recv(65536))

    def test_stop_at_the_limit(self):
        self.start("--max-connections", "4")
        waiting = self.crowd()
        self.assertEqual(self.server.stop(), 0)
        for s in waiting:
            try:
                s.recv(65536)
            except ConnectionResetError:
                pass

    def test_no_descriptors(self):
        """The server neither spins nor forgets who waits, and says it once."""
        self.start()
        taken, waiting = self.starve()
        before, begin = self.cpu_seconds(), time.monotonic()
        time.sleep(1)
        self.assertLess(self.cpu_seconds() - before, 0.3 * (time.monotonic() - begin))
        self.assertEqual(self.server.stderr().count("connections have to wait"), 1)
        for s in taken:
            s.close()
        for s in waiting:
            self.assertIn(b"200 OK", s.recv(65536))
            s.close()

    def test_stop_without_descriptors(self):
        self.start()
        self.starve()
        self.assertEqual(self.server.stop(), 0)

    def test_ipv6(self):
        if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
            self.skipTest("there is no IPv6")
        self.start("--host", "::1")
        with socket.create_connection(("::1", self.server.port), timeout=120) as s:
            s.sendall(REQUEST)
            self.assertIn(b"200 OK", s.recv(65536))

    def test_a_client_that_is_gone_before_it_is_accepted(self):
        self.start()
        for _ in range(200):
            s = socket.create_connection(("127.0.0.1", self.server.port), timeout=120)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closed by a reset
            s.close()
        self.assertEqual(self.server.request("GET", "/health")[0], 200)
