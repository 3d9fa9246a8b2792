"""A TCP relay between servers and a store: a link that a test can cut or hold. While it is held, the connections stay and nothing comes through, as
on a link that drops packets."""
import selectors
import socket
import struct
import threading

CHUNK = 1 << 18


class Relay:
    """From `host` to `to_host`, on the same ports, or from one port to another one. One thread; `cut`, `hold` and `mend` may be called from any."""

    def __init__(self, host, to_host, ports):
        """@param ports {port here: port there}; here 0: any, then `port` is what it became."""
        self.host, self.to_host, self.ports = host, to_host, dict(ports)
        self.selector = selectors.DefaultSelector()
        self.listeners, self.pairs = {}, {}  # socket -> port there; socket -> the other one's
        self.waiting = {}  # socket -> what it has to be sent
        self.state = self.wanted = "through"
        self.waker, self.wakened = socket.socketpair()
        self.selector.register(self.wakened, selectors.EVENT_READ, self.read_wish)
        self.listen()
        self.port = next(iter(self.ports))
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def want(self, state):
        with self.changed:
            self.wanted = state
            self.waker.send(b"!")
            self.changed.wait_for(lambda: self.state == state)

    def cut(self):
        """Connections are reset, new ones refused."""
        self.want("cut")

    def hold(self):
        """Connections stay, and can be made; nothing comes through."""
        self.want("held")

    def mend(self):
        """What was held goes on."""
        self.want("through")

    def close(self):
        self.want("closed")
        self.thread.join()
        self.selector.close()
        self.waker.close()
        self.wakened.close()

    # ---- the thread ----

    def listen(self):
        found = {}
        for port, there in self.ports.items():
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind((self.host, port))
            s.listen(64)
            s.setblocking(False)
            self.listeners[s] = there
            found[s.getsockname()[1]] = there
        self.ports = found

    def drop(self, s, reset=True):
        """Both ends."""
        for end in (s, self.pairs[s]):
            del self.pairs[end]
            self.waiting.pop(end, None)
            if end in self.selector.get_map():
                self.selector.unregister(end)
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()

    def watch(self):
        """Listen to what the state asks for."""
        for s in [*self.listeners, *self.pairs]:
            events = 0
            if self.state == "through":
                events = selectors.EVENT_READ if s in self.listeners or not self.waiting.get(self.pairs[s]) else 0
                events |= selectors.EVENT_WRITE if self.waiting.get(s) else 0
            known = s in self.selector.get_map()
            if known and not events:
                self.selector.unregister(s)
            elif known:
                self.selector.modify(s, events)
            elif events:
                self.selector.register(s, events)

    def read_wish(self, wakened):
        wakened.recv(16)
        with self.changed:
            if self.wanted in ("cut", "closed"):
                while self.pairs:
                    self.drop(next(iter(self.pairs)))
                for s in self.listeners:
                    if s in self.selector.get_map():
                        self.selector.unregister(s)
                    s.close()
                self.listeners = {}
            elif not self.listeners:
                self.listen()
            self.state = self.wanted
            self.changed.notify_all()

    def accept(self, listener):
        try:
            here, _ = listener.accept()
        except OSError:
            return
        try:
            there = socket.create_connection((self.to_host, self.listeners[listener]), timeout=5)
        except OSError:
            here.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            here.close()
            return
        for s in (here, there):
            s.setblocking(False)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pairs[here], self.pairs[there] = there, here

    def move(self, s, events):
        if events & selectors.EVENT_WRITE and self.waiting.get(s):
            self.waiting[s] = self.waiting[s][s.send(self.waiting[s]) :]
        if events & selectors.EVENT_READ:
            data = s.recv(CHUNK)
            if not data:
                self.drop(s, reset=False)  # nobody here closes one way only
                return
            self.waiting[self.pairs[s]] = data

    def run(self):
        while self.state != "closed":
            self.watch()
            for key, events in self.selector.select():
                if key.data:
                    key.data(key.fileobj)
                elif key.fileobj in self.listeners:
                    self.accept(key.fileobj)
                elif key.fileobj in self.pairs:
                    try:
                        self.move(key.fileobj, events)
                    except BlockingIOError:
                        pass
                    except OSError:
                        self.drop(key.fileobj)
