"""Stops the API server of the machine that it runs on for half a minute. Whatever happens, it goes on afterwards."""

import os
import pathlib
import signal
import time


def processes(name):
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text().strip() == name:
                    yield int(entry.name)
            except OSError:
                pass


found = list(processes("kube-apiserver"))
if not found:
    raise SystemExit("no API server on this machine")
try:
    for process in found:
        os.kill(process, signal.SIGSTOP)
    time.sleep(30)
finally:
    for process in found:
        os.kill(process, signal.SIGCONT)
