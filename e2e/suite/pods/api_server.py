"""What happens to the API server of the machine that it runs on: `hang` stops it for half a minute, and whatever happens
it goes on afterwards; `kill` ends it, and waits until whoever keeps it running has started another."""

import os
import pathlib
import signal
import sys
import time


def found():
    ids = set()
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text().strip() == "kube-apiserver":
                    ids.add(int(entry.name))
            except OSError:
                pass
    return ids


def hang(processes):
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        time.sleep(30)
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def kill(processes):
    for process in processes:
        os.kill(process, signal.SIGKILL)
    while not found() - processes:
        time.sleep(0.2)


processes = found()
if not processes:
    raise SystemExit("no API server on this machine")
{"hang": hang, "kill": kill}[sys.argv[1]](processes)
