"""A stop amid requests, at the moment in which two threads take the listening socket out of their epoll sets.

libmicrohttpd (0.9.75) aborts the process when the thread that stops it and one of its own do that together."""
import http.client
import threading
import time
import unittest

from fault import Control, launch

CLIENTS = 8
DELAY_MS = 200  # of the thread that stops; enough for the others to come in between


class Stop(unittest.TestCase):
    def test_stop_under_traffic(self):
        control = Control()
        server = launch(control, wait=True)
        control["unlisten", "first"] = control["unlisten", "every"] = 1
        control["unlisten", "how"] = DELAY_MS
        answered = [0] * CLIENTS
        done = threading.Event()

        def load(i):
            """One connection, kept: requests come while the server stops, too."""
            connection = server.connection()
            while not done.is_set():
                try:
                    connection.request("GET", "/health")
                    connection.getresponse().read()
                    answered[i] += 1
                except (http.client.HTTPException, OSError):
                    return

        threads = [threading.Thread(target=load, args=(i,)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        while min(answered) == 0:
            time.sleep(0.01)
        try:
            self.assertEqual(server.stop(), 0, server.stderr())
        finally:
            done.set()
            for t in threads:
                t.join()
