"""A Python program that holds some memory and then exits with all of it held.

Interpreter shutdown frees what the program holds. C's `exit` does not, so a profile at exit shows it.
"""

import ctypes
import json
import sys
import tracemalloc


def parse_users(count):
    users = [{"id": i, "name": f"user {i}", "tags": [f"tag {i % 7}"], "score": i / 3} for i in range(count)]
    return json.loads(json.dumps(users))


def load_images(count):
    return [bytes(1000 + i % 3000) for i in range(count)]


users = parse_users(100_000)
images = load_images(20_000)

if tracemalloc.is_tracing():
    print("tracemalloc", tracemalloc.get_traced_memory()[0])
sys.stdout.flush()
ctypes.CDLL(None).exit(0)
