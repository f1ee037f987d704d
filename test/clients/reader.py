"""As reader.ts: a program that reads a sink by the client, for tests that stop and kill it."""

import os
import random
import threading
import time

from tailrace import Consumer, Message

work_s = float(os.environ["WORK_MS"]) / 1000
consumer = Consumer(os.environ["SINK"], os.environ["TOKEN"], os.environ["URL"])
consumer.stop_on_signals()
printing = threading.Lock()


def handle(message: Message) -> None:
    if work_s > 0:
        time.sleep(random.random() * work_s)
    with printing:
        print(message.record["id"], message.record["v"], flush=True)


consumer.run(handle, concurrency=int(os.environ["CONCURRENCY"]))
