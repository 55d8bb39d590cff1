"""An application that calls before it has done anything else: it must find its sidecar ready."""

import http.client
import json
import os
import time
from urllib.parse import urlsplit

base = urlsplit(os.environ["OPENAI_BASE_URL"])
connection = http.client.HTTPConnection(base.hostname, base.port, timeout=30)
body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]})
connection.request("POST", base.path + "/chat/completions", body, {"content-type": "application/json"})
answer = connection.getresponse()
text = answer.read().decode()
with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
    started = int(stat.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    print(f"{answer.status} after {float(uptime.read().split()[0]) - started:.2f} s at {time.time():.0f}: {text[:300]}")
raise SystemExit(0 if answer.status == 200 else 1)
