"""Reads a pull sink of Tailrace: messages, batches, or a handler. One file, the standard library, Python 3.9 or later.

 - A message is settled by the program, or by its handler: acknowledged when that returns, given back when it raises. What is
   neither comes again when the sink's ack_wait_ms is over. So a program that dies loses nothing.
 - The next batch is fetched while one is handled. Of both together no more is held than is handled in a quarter of ack_wait_ms
   at the present pace, and a message whose time is over before it was begun is let go: it comes again.
 - The service hands out one message of a row at a time, so handlers that run beside each other keep the order of each row.
 - When it is stopped, what was not begun goes back at once, what is being handled ends and is settled, and nothing more is
   received.
"""

from __future__ import annotations

import http.client
import json
import logging
import queue
import random
import signal as signals
import socket
import ssl
import sys
import threading
import time
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Dict, Generator, Iterable, Iterator, List, Mapping, NamedTuple, Optional
from urllib.parse import quote, urlsplit

__all__ = ["Batch", "Consumer", "Message", "TailraceError"]

log = logging.getLogger("tailrace")

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 10.0
# Of the pause: clients that failed together don't come back together.
MOST_CHANCE = 0.5
# A call without an answer for so long has lost its connection.
ANSWER_WITHIN_S = 30.0
# A receive that is under way at the end is waited for so long: its answer has messages that are given back.
LINGER_S = 1.0
# When all else has stopped, a service that doesn't answer is not waited for any longer.
STOP_GRACE_S = 10.0
PASSING = frozenset((408, 425, 429))
MAX_IDS = 50_000
# What a sink has unless it says otherwise.
DEFAULT_ACK_WAIT_S = 30.0
# Of ack_wait_ms: the rest is for the way of messages and acks.
USABLE = 0.9
# Of ack_wait_ms, for each of two batches.
HELD = 1 / 8
# An empty answer that comes sooner would be asked for again and again.
LEAST_WAIT_S = 0.25
FIRST_NACK_PAUSE_S = 0.5
MAX_NACK_PAUSE_S = 60.0
# Failures of a handler that are remembered.
MAX_FAILURES = 10_000


class TailraceError(Exception):
    """What a call, or a consumer, failed with: ``code`` as in docs/errors.md, the HTTP ``status`` and the ``remedy`` where there are any."""

    def __init__(self, message: str, code: str, status: Optional[int] = None, remedy: Optional[str] = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.remedy = remedy


class Message:
    """A change of a row: ``record``, ``changes``, ``action`` and ``metadata``; of a sink with a transform its result as ``data``."""

    __slots__ = ("ack_id", "record", "changes", "action", "metadata", "data", "_batch", "_is_settled")

    def __init__(self, wire: Mapping[str, Any], batch: Batch) -> None:
        self.ack_id: str = wire["ack_id"]
        self.record: Dict[str, Any] = wire.get("record", {})
        self.changes: Optional[Dict[str, Any]] = wire.get("changes")
        self.action: Optional[str] = wire.get("action")
        self.metadata: Dict[str, Any] = wire.get("metadata", {})
        self.data: Any = wire.get("data")
        self._batch = batch
        self._is_settled = False

    @property
    def expires_at(self) -> float:
        """When the service gives it to another client, if it is not settled before; as time.time() tells the time."""
        return self._batch.expires_at

    def ack(self) -> None:
        """Says that it is done: it never comes again. Returns when the service has that on disk."""
        self._batch._settle("ack", [self])

    def nack(self) -> None:
        """Gives it back: it comes again at once."""
        self._batch._settle("nack", [self])


class Batch:
    """The messages of one answer."""

    def __init__(self, received: Mapping[str, Any], settlements: _Settlements, expires_at: float) -> None:
        self.expires_at = expires_at
        self.messages: List[Message] = [Message(wire, self) for wire in received["data"]]
        self._settlements = settlements
        self._token: Optional[str] = received.get("ack_token")
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def ack(self) -> None:
        """Says that all of them are done but those that were settled one by one. Returns when the service has that on disk."""
        self._settle("ack", self.messages)

    def nack(self) -> None:
        """Gives all of them back but those that were settled one by one: they come again at once."""
        self._settle("nack", self.messages)

    def _settle(self, verb: str, messages: Iterable[Message]) -> None:
        self._settlements.send(verb, self._take(messages))

    def _take(self, messages: Iterable[Message]) -> List[str]:
        with self._lock:
            open_ = [message for message in messages if not message._is_settled]
            for message in open_:
                message._is_settled = True
        # of a whole answer only: an ack by the token would also end what was given back one by one
        if self._token is not None and len(open_) == len(self.messages):
            return [self._token]
        return [message.ack_id for message in open_]


class Consumer:
    """Reads a pull sink: loop over it, over its ``batches()``, or let it ``run`` a handler.

    :param sink: its id or name
    :param token: an API token of its account
    :param url: of the service
    :param batch_size: messages in an answer, at most 1000
    :param wait_for: seconds that a call waits for a message
    :param ack_wait: the sink's ack_wait_ms in seconds; None: what the service says, or 30 where the token may not read the sink
    :param ssl_context: of an https URL
    """

    def __init__(
        self,
        sink: str,
        token: str,
        url: str = "http://127.0.0.1:7376",
        *,
        batch_size: int = 100,
        wait_for: float = 20.0,
        ack_wait: Optional[float] = None,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        if not sink or not token:
            raise TailraceError("sink and token must be given", "ARGUMENT_INVALID")
        if not 1 <= batch_size <= 1000:
            raise TailraceError("batch_size must be a whole number from 1 to 1000", "ARGUMENT_INVALID")
        if not 0 <= wait_for <= 300:
            raise TailraceError("wait_for must be from 0 to 300 seconds", "ARGUMENT_INVALID")
        self._batch_size = batch_size
        self._wait_for = wait_for
        self._ack_wait = ack_wait
        self._stopped = _Stop()
        self._calls = _Calls(sink, token, url, ssl_context)
        self._settlements = _Settlements(self._calls, self._stopped)

    def stop(self) -> None:
        """Ends the reading, from any thread or from a handler of signals."""
        self._stopped.set()

    def stop_on_signals(self, *numbers: int) -> None:
        """Stops at SIGTERM and SIGINT, or at those that are given. To be called in the main thread."""
        for number in numbers or (signals.SIGTERM, signals.SIGINT):
            signals.signal(number, lambda *_: self.stop())

    def __iter__(self) -> Generator[Message, None, None]:
        """Gives messages one by one; each wants an ack or a nack."""
        return self._messages(1)

    def batches(self) -> Generator[Batch, None, None]:
        """Gives batches; each wants an ack or a nack."""
        with _Reading(self, self._batch_size) as reading:
            for held in reading:
                if reading.begin(held, len(held.batch)):
                    yield held.batch

    def run(
        self,
        handler: Callable[[Message], Any],
        *,
        concurrency: int = 1,
        on_error: Optional[Callable[[Exception, Message], None]] = None,
    ) -> None:
        """Handles messages in threads until it is stopped; returns when all that was begun is settled.

        A message is acknowledged when its handler returns. When that raises, the message is given back after a pause that grows.

        :raises TailraceError: what the service refuses for good, such as TOKEN_INVALID or NOT_FOUND
        """
        if concurrency < 1:
            raise TailraceError("concurrency must be at least 1", "ARGUMENT_INVALID")
        _Handling(self, handler, on_error or _log_error).run(concurrency)

    def _messages(self, first: int) -> Generator[Message, None, None]:
        with _Reading(self, first) as reading:
            for held in reading:
                for message in held.batch:
                    if not reading.begin(held, 1):
                        break
                    yield message


def _log_error(error: Exception, message: Message) -> None:
    log.error("a handler failed", exc_info=error)


class _Stop:
    """An end that many wait for, and that a handler of signals may set: it takes no lock that is held where the signal comes."""

    def __init__(self) -> None:
        self.at: Optional[float] = None
        self._events: List[threading.Event] = []

    def set(self) -> None:
        if self.at is not None:
            return
        self.at = time.monotonic()
        # the thread that a signal interrupts may be inside of an event: another one sets them
        threading.Thread(target=self._set_all, daemon=True).start()

    def event(self) -> threading.Event:
        """An event of its own for who waits: it is set by the stop, and may be set before."""
        event = threading.Event()
        self._events.append(event)
        if self.at is not None:
            event.set()
        return event

    def forget(self, event: threading.Event) -> None:
        self._events.remove(event)

    def _set_all(self) -> None:
        for event in list(self._events):
            event.set()


class _Stopped(Exception):
    """The reading has ended."""


class _Calls:
    """Calls of the API that are tried again, over connections that are kept, one for each thread."""

    def __init__(self, sink: str, token: str, url: str, ssl_context: Optional[ssl.SSLContext]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TailraceError(f"url must be an http or https address, got {url!r}", "ARGUMENT_INVALID")
        self._url = url
        self._host = parts.hostname
        self._port = parts.port
        self._ssl = (ssl_context or ssl.create_default_context()) if parts.scheme == "https" else None
        base = f"{parts.path.rstrip('/')}/api"
        self._paths = {call: f"{base}/http_pull_consumers/{quote(sink, safe='')}/{call}" for call in ("receive", "ack", "nack")}
        self._sink_path = f"{base}/sinks/{quote(sink, safe='')}"
        self._sink = sink
        self._token = token

    def post(self, call: str, body: Mapping[str, Any], line: _Line, stop: Callable[[float], bool], wait: float = 0) -> _Answer:
        """Posts until it is answered with 200. :param stop: waits so long, and tells whether to give up"""
        sent = json.dumps(body).encode()
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._once("POST", self._paths[call], sent, line, wait + ANSWER_WITHIN_S)
            except _Refused as refused:
                if not refused.is_passing:
                    raise refused.error from None
                pause = max(min(FIRST_PAUSE_S * 2 ** min(attempt - 1, 16), MAX_PAUSE_S), refused.retry_after)
                pause *= 1 + random.random() * MOST_CHANCE
                if attempt >= 3:
                    text = "sink %s: %s (%s); trying again in %.1f s"
                    log.warning(text, self._sink, refused.error, refused.error.code, pause)
                if stop(pause):
                    raise _Stopped from refused.error

    def sink(self, line: _Line) -> Dict[str, Any]:
        """Reads the sink once; nothing, where it was not answered or the token may not see it."""
        try:
            return self._once("GET", self._sink_path, None, line, ANSWER_WITHIN_S).fields
        except _Refused:
            return {}

    def _once(self, method: str, path: str, body: Optional[bytes], line: _Line, within: float) -> _Answer:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json", **_trace_headers()}
        try:
            line.request(self._connection, within, method, path, body, headers)
            answer = line.answer()
            arrived = time.time()
            text = answer.read()
            if 200 <= answer.status < 300:
                return _Answer(json.loads(text), arrived)
        except (OSError, http.client.HTTPException, ValueError) as error:
            line.close()
            message = f"no Tailrace answers at {self._url}: {error or type(error).__name__}"
            remedy = "Check that the service runs, its address and the network."
            raise _Refused(TailraceError(message, "SERVICE_UNREACHABLE", remedy=remedy)) from error
        fields = _fields(text)
        message = fields.get("summary") or f"HTTP {answer.status}: {text[:200]!r}"
        error = TailraceError(message, fields.get("code") or f"HTTP_{answer.status}", answer.status, fields.get("remedy"))
        raise _Refused(error, _seconds(answer.getheader("retry-after")))

    def _connection(self, within: float) -> http.client.HTTPConnection:
        if self._ssl is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=within, context=self._ssl)
        return http.client.HTTPConnection(self._host, self._port, timeout=within)


class _Answer(NamedTuple):
    fields: Dict[str, Any]
    # by time.time()
    arrived: float


class _Line:
    """A connection that is kept for the calls of one thread at a time; another one may cut it."""

    def __init__(self) -> None:
        self._connection: Optional[http.client.HTTPConnection] = None

    def request(
        self,
        connect: Callable[[float], http.client.HTTPConnection],
        within: float,
        method: str,
        path: str,
        body: Optional[bytes],
        headers: Dict[str, str],
    ) -> None:
        if self._connection is None:
            self._connection = connect(within)
        if self._connection.sock is None:
            self._connection.connect()
        self._connection.sock.settimeout(within)
        self._connection.request(method, path, body, headers)

    def answer(self) -> http.client.HTTPResponse:
        if self._connection is None:
            raise ConnectionError("the connection was closed")
        return self._connection.getresponse()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def hang_up(self) -> None:
        """Tells the service that nobody waits any more, and lets the thread that does read what is on its way. TLS has no such word."""
        self._shut(socket.SHUT_WR)

    def cut(self) -> None:
        """Ends the call that another thread waits for."""
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is None or (how == socket.SHUT_WR and isinstance(sock, ssl.SSLSocket)):
            return
        try:
            sock.shutdown(how)
        except OSError:
            pass  # it has ended by itself


class _Refused(Exception):
    def __init__(self, error: TailraceError, retry_after: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after = retry_after
        self.is_passing = error.status is None or error.status >= 500 or error.status in PASSING


def _fields(text: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}  # a proxy's page
    return value if isinstance(value, dict) else {}


def _seconds(retry_after: Optional[str]) -> float:
    """Reads Retry-After: seconds or a date."""
    if not retry_after:
        return 0.0
    if retry_after.isdigit():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0


def _trace_headers() -> Dict[str, str]:
    """The headers, such as traceparent, by which the calls belong to the trace of who makes them, where there is OpenTelemetry."""
    propagate = sys.modules.get("opentelemetry.propagate")
    headers: Dict[str, str] = {}
    if propagate is not None:
        propagate.inject(headers)
    return headers


def _in_trace_of(message: Message, handle: Callable[[Message], object]) -> None:
    """Handles a message in the trace of who wrote its row, where there is OpenTelemetry and the row's transaction says so."""
    propagate = sys.modules.get("opentelemetry.propagate")
    context = sys.modules.get("opentelemetry.context")
    annotations = (message.metadata or {}).get("transaction_annotations")
    if propagate is None or context is None or not isinstance(annotations, dict):
        handle(message)
        return
    token = context.attach(propagate.extract({key: text for key, text in annotations.items() if isinstance(text, str)}))
    try:
        handle(message)
    finally:
        context.detach(token)


class _Gathered:
    def __init__(self) -> None:
        self.ids: List[str] = []
        self.is_answered = False
        self.error: Optional[BaseException] = None


class _Settlements:
    """Sends acks and nacks: what comes while a call is under way goes with the next one."""

    def __init__(self, calls: _Calls, stopped: _Stop) -> None:
        self._calls = calls
        self._stopped = stopped
        self._lock = threading.Lock()
        self._next = {"ack": _Gathered(), "nack": _Gathered()}
        self._sending = {"ack": threading.Lock(), "nack": threading.Lock()}
        self._lines = {"ack": _Line(), "nack": _Line()}

    def send(self, verb: str, ids: List[str]) -> None:
        """Sends ids, and returns when the service has them on disk. :raises TailraceError: it refuses them"""
        if not ids:
            return
        with self._lock:
            gathered = self._next[verb]
            gathered.ids.extend(ids)
        with self._sending[verb]:
            if not gathered.is_answered:  # else another thread has sent them with its own
                with self._lock:
                    self._next[verb] = _Gathered()
                self._send(verb, gathered)
        if gathered.error is not None:
            raise gathered.error

    def close(self) -> None:
        for verb, line in self._lines.items():
            with self._sending[verb]:
                line.close()

    def _send(self, verb: str, gathered: _Gathered) -> None:
        begun = time.monotonic()
        event = self._stopped.event()
        try:
            for at in range(0, len(gathered.ids), MAX_IDS):
                body = {"ack_ids": gathered.ids[at : at + MAX_IDS]}
                self._calls.post(verb, body, self._lines[verb], lambda pause: self._gives_up(pause, begun, event))
        except _Stopped as stopped:
            gathered.error = stopped.__cause__
        except BaseException as error:  # all who wait for it learn of it
            gathered.error = error
        finally:
            gathered.is_answered = True
            self._stopped.forget(event)

    def _gives_up(self, pause: float, begun: float, event: threading.Event) -> bool:
        """Waits before the next try. When all else has stopped, there is an end to that."""
        if self._stopped.at is None and not event.wait(pause):
            return False
        left = max(self._stopped.at or begun, begun) + STOP_GRACE_S - time.monotonic()
        time.sleep(max(0.0, min(pause, left)))
        return left <= pause


class _Held:
    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.begun = 0


class _Reading:
    """One reading of a sink: a thread fetches the next batch while one is handled, and another one gives back what is left at the end."""

    def __init__(self, consumer: Consumer, first: int) -> None:
        self._consumer = consumer
        self._first = first
        self._ended = consumer._stopped.event()
        self._lock = threading.Lock()
        self._held: List[_Held] = []
        self._batches: queue.Queue[Any] = queue.Queue()
        self._wanted = threading.Semaphore(0)
        self._line = _Line()
        # seconds that a message took lately; 0: none was handled
        self._pace = 0.0
        self._ending = threading.Thread(target=self._end, daemon=True)
        self._fetching = threading.Thread(target=self._fetch, daemon=True)

    def __enter__(self) -> _Reading:
        self._ending.start()
        self._fetching.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._ending.join()
        self._line.close()
        self._consumer._stopped.forget(self._ended)

    def __iter__(self) -> Iterator[_Held]:
        self._wanted.release()
        while True:
            held = self._batches.get()
            if held is None:
                return
            if isinstance(held, BaseException):
                raise held
            self._wanted.release()
            begun = time.monotonic()
            yield held
            self.done(held)
            pace = (time.monotonic() - begun) / len(held.batch)
            self._pace = max(pace if self._pace == 0 else self._pace * 0.7 + pace * 0.3, 1e-9)

    def begin(self, held: _Held, messages: int) -> bool:
        """Counts some more messages as begun, unless what is left was given back, or its time is over."""
        with self._lock:
            if held not in self._held or self._is_ended() or held.batch.expires_at <= time.time():
                return False
            held.begun += messages
            return True

    def done(self, held: _Held) -> None:
        """Forgets a batch, but for messages that the end of the reading has yet to give back."""
        with self._lock:
            if held in self._held and not self._is_ended():
                self._held.remove(held)

    def _is_ended(self) -> bool:
        return self._ended.is_set() or self._consumer._stopped.at is not None

    def _fetch(self) -> None:
        try:
            ack_wait = self._consumer._ack_wait or self._find_ack_wait()
            while not self._is_ended():
                self._wanted.acquire()
                held = None
                while held is None and not self._is_ended():
                    held = self._receive(ack_wait)
                if held is not None:
                    self._batches.put(held)
        except _Stopped:
            pass
        except BaseException as error:
            self._batches.put(error)
        self._batches.put(None)

    def _find_ack_wait(self) -> float:
        stored = self._consumer._calls.sink(self._line).get("ack_wait_ms")
        return stored / 1000 if isinstance(stored, (int, float)) else DEFAULT_ACK_WAIT_S

    def _receive(self, ack_wait: float) -> Optional[_Held]:
        consumer = self._consumer
        size = min(self._first, consumer._batch_size)
        if self._pace > 0:
            size = max(1, min(consumer._batch_size, int(ack_wait * HELD / self._pace)))
        body = {"batch_size": size, "wait_for": round(consumer._wait_for * 1000), "ack_token": True}
        begun = time.monotonic()
        received, arrived = consumer._calls.post("receive", body, self._line, self._gives_up, consumer._wait_for)
        if not received["data"]:
            if time.monotonic() - begun < LEAST_WAIT_S:
                self._ended.wait(LEAST_WAIT_S)  # a sink that is paused, a service that stops
            return None
        held = _Held(Batch(received, consumer._settlements, arrived + ack_wait * USABLE))
        with self._lock:
            self._held.append(held)
        if self._is_ended():
            self._give_back()
            return None
        return held

    def _gives_up(self, pause: float) -> bool:
        return self._ended.wait(pause) or self._is_ended()

    def _end(self) -> None:
        self._ended.wait()
        self._line.hang_up()
        self._wanted.release()
        self._give_back()
        self._fetching.join(LINGER_S)
        while self._fetching.is_alive():
            self._line.cut()
            self._fetching.join(0.05)
        self._give_back()

    def _give_back(self) -> None:
        """What was not begun comes at once to others; without an answer to this it does when ack_wait_ms is over."""
        with self._lock:
            held, self._held = self._held, []
            ids = [id_ for one in held for id_ in self._unbegun(one)]
        try:
            self._consumer._settlements.send("nack", ids)
        except TailraceError as error:
            log.warning("what was not begun could not be given back: %s", error)

    @staticmethod
    def _unbegun(held: _Held) -> List[str]:
        if held.batch.expires_at <= time.time():
            return []  # others may have it already
        return held.batch._take(held.batch.messages[held.begun :])


class _Handling:
    """Threads that share the messages of a reading."""

    def __init__(self, consumer: Consumer, handler: Callable[[Message], Any], on_error: Callable[[Exception, Message], None]) -> None:
        self._consumer = consumer
        self._handler = handler
        self._on_error = on_error
        self._lock = threading.Lock()
        # A message whose time is over comes again, also here, while it is worked on: once is enough.
        self._at_work: set[str] = set()
        self._failures: Dict[str, int] = {}
        self._error: Optional[BaseException] = None
        self._ended = consumer._stopped.event()

    def run(self, concurrency: int) -> None:
        work: queue.Queue[Optional[Message]] = queue.Queue()
        free = threading.Semaphore(concurrency)
        threads = [threading.Thread(target=self._work, args=(work, free), daemon=True) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        messages = self._consumer._messages(concurrency)
        try:
            while True:
                # a message counts as begun when it is taken: so only when a thread is there for it
                while not free.acquire(timeout=0.1):
                    pass
                message = next(messages, None)
                if message is None:
                    break
                if self._take(message):
                    work.put(message)
                else:
                    free.release()
        except BaseException as error:
            self._fail(error)
        finally:
            messages.close()
            for _ in threads:
                work.put(None)
            for thread in threads:
                thread.join()
            self._consumer._stopped.forget(self._ended)
            self._consumer._settlements.close()
        if self._error is not None:
            raise self._error

    def _work(self, work: queue.Queue[Optional[Message]], free: threading.Semaphore) -> None:
        while True:
            message = work.get()
            if message is None:
                return
            try:
                self._handle(message)
            except BaseException as error:
                self._fail(error)
            finally:
                with self._lock:
                    self._at_work.discard(message.ack_id)
                free.release()

    def _handle(self, message: Message) -> None:
        try:
            _in_trace_of(message, self._handler)
        except Exception as error:
            self._on_error(error, message)
            self._ended.wait(self._pause(message))
            with self._lock:
                self._at_work.discard(message.ack_id)  # before it is given back: it comes again at once
            message.nack()
        else:
            self._failures.pop(message.ack_id, None)
            message.ack()

    def _take(self, message: Message) -> bool:
        with self._lock:
            if message.ack_id in self._at_work:
                return False
            self._at_work.add(message.ack_id)
            return True

    def _pause(self, message: Message) -> float:
        """How long a message whose handler failed is kept before it is given back, for the API has no pause for that."""
        with self._lock:
            failures = self._failures.pop(message.ack_id, 0) + 1
            self._failures[message.ack_id] = failures
            while len(self._failures) > MAX_FAILURES:
                del self._failures[next(iter(self._failures))]
        left = message.expires_at - time.time()
        return max(0.0, min(FIRST_NACK_PAUSE_S * 2 ** min(failures - 1, 16), MAX_NACK_PAUSE_S, left))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._consumer.stop()
