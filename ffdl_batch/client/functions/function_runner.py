"""Call the function of a job, and write its result. It is copied into the job's model, and runs in the learner.

It needs cloudpickle, which is copied beside it, and no other package. It must run with every Python 3, so that it can
report a wrong version.
"""

import hashlib
import hmac
import json
import os
import sys
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
MAGIC = b"ffdl-function-1\n"


def write_outcome(key: bytes, outcome: "dict[str, str]", payload: bytes) -> None:
    """Write the outcome and the pickled value, signed with the job's key, at once."""
    body = json.dumps(outcome).encode("ascii") + b"\n" + payload
    path = os.path.join(os.environ["RESULT_DIR"], "function.result")  # noqa: PTH118
    with open(path + ".part", "wb") as file:  # noqa: PTH123
        file.write(MAGIC + hmac.new(key, body, hashlib.sha256).digest() + body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)  # noqa: PTH105


def call_function() -> "tuple[str, bytes, str]":
    """Return the status and the pickled value or exception, and the traceback."""
    import cloudpickle

    text = ""
    try:
        with open(os.path.join(HERE, "call.pickle"), "rb") as file:  # noqa: PTH118, PTH123
            function, arguments = cloudpickle.load(file)
        return "returned", cloudpickle.dumps(function(*arguments)), text
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is raised again where the result is read
        text = traceback.format_exc()
        error.__traceback__ = None
        try:
            return "raised", cloudpickle.dumps(error), text
        except Exception:  # noqa: BLE001 - the traceback has its text
            return "raised", b"", text


def main() -> int:
    """Call the function in each learner. The first one writes the result."""
    with open(os.path.join(HERE, "call.json"), encoding="ascii") as file:  # noqa: PTH118, PTH123
        call = json.load(file)
    sys.path[:0] = [os.path.join(HERE, "packages"), os.path.dirname(HERE)]  # noqa: PTH118, PTH120
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if own != call["python"]:
        status, payload, text = "other python", b"", own
        message = f"the function needs Python {call['python']}, and this is Python {own}"
        sys.stderr.write(f"{message}\n")
    else:
        status, payload, text = call_function()
        sys.stderr.write(text)
    if os.environ.get("LEARNER_ID", "1") == "1":
        write_outcome(bytes.fromhex(call["key"]), {"status": status, "text": text}, payload)
    return 0 if status == "returned" else 1


if __name__ == "__main__":
    sys.exit(main())
