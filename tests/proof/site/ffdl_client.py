"""A client of FfDL's REST API, with the standard library alone: submits a job, or prints what the API shows of jobs.

    ffdl_client.py URL AUTHORITY TOKEN submit MANIFEST | show ID...

Exit status 75 if the hub or the daemon is just starting.
"""

from __future__ import annotations

import base64
import io
import json
import ssl
import sys
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

TRY_AGAIN = 75
HEAD = '--x\r\nContent-Disposition: form-data; name="{0}"; filename="{0}"\r\n\r\n'


def ask(path: str, body: bytes | None = None, **headers: str) -> bytes:
    """Send a request with the token as a password; return the reply."""
    url, authority, token = sys.argv[1:4]
    basic = base64.b64encode(f"me:{token}".encode()).decode()
    named = {"Authorization": f"Basic {basic}", "X-Watson-Userinfo": "bluemix-instance-id=carol", **headers}
    request = urllib.request.Request(f"{url}/v1/{path}?version=2017-02-13", body, named)
    try:
        context = ssl.create_default_context(cafile=authority)
        with urllib.request.urlopen(request, timeout=300, context=context) as reply:
            return bytes(reply.read())
    except urllib.error.HTTPError as error:
        print(error.read().decode(), file=sys.stderr)
        sys.exit(TRY_AGAIN if error.code == 503 else 1)
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(TRY_AGAIN)


def submit(manifest: Path) -> str:
    """Submit a manifest with a model of one file; return the id."""
    model = io.BytesIO()
    with zipfile.ZipFile(model, "w") as archive:
        archive.writestr("README", "nothing here\n")
    parts = {"manifest": manifest.read_bytes(), "model_definition": model.getvalue()}
    body = b"".join(HEAD.format(name).encode() + data + b"\r\n" for name, data in parts.items()) + b"--x--\r\n"
    reply = ask("models", body, **{"Content-Type": "multipart/form-data; boundary=x"})
    return str(json.loads(reply)["model_id"])


def show(job: str) -> dict[str, object]:
    """Return the status, the lines of the log, and the results."""
    status = json.loads(ask(f"models/{job}"))["training"]["training_status"]["status"]
    lines = [one["line"] for one in json.loads(ask(f"logs/{job}/loglines"))["models"]]
    with zipfile.ZipFile(io.BytesIO(ask(f"models/{job}/trained_model"))) as archive:
        results = {name: archive.read(name).decode() for name in archive.namelist()}
    return {"status": status, "lines": lines, "results": results}


if __name__ == "__main__":
    verb, *words = sys.argv[4:]
    if verb == "submit":
        print(submit(Path(words[0])))
    else:
        for word in words:
            print(json.dumps([word, show(word)]))
