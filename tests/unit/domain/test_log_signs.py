"""What the end of a log says: tracebacks as CPython 3.11 prints them, and what launchers and other ranks add."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.incidents.log_signatures import AFTERWORDS, Sign, read_signs, tracebacks

PLAIN = """\
epoch 3 loss 0.31
Traceback (most recent call last):
  File "/model/train.py", line 41, in <module>
    main()
  File "/model/train.py", line 12, in main
    lr = table[step]
         ~~~~~^^^^^^
KeyError: 4100"""
CHAINED = """\
Traceback (most recent call last):
  File "/model/chain.py", line 3, in load
    open(path)
FileNotFoundError: [Errno 2] No such file or directory: '/data/none'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/model/chain.py", line 6, in <module>
    load("/data/none")
  File "/model/chain.py", line 5, in load
    raise RuntimeError("no shard could be opened") from error
RuntimeError: no shard could be opened"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/model/group.py", line 8, in <module>
  |     raise ExceptionGroup("two workers failed", [ExceptionGroup("inner", errs), KeyError("lr")])
  | ExceptionGroup: two workers failed (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "/model/group.py", line 5, in <module>
      |     f()
      |   File "/model/group.py", line 2, in f
      |     raise ValueError("bad shape (3, 4)")
      | ValueError: bad shape (3, 4)
      +------------------------------------
    +---------------- 2 ----------------
    | KeyError: 'lr'
    +------------------------------------"""
NOTE = """\
Traceback (most recent call last):
  File "/model/note.py", line 2, in <module>
    raise e
ValueError: lr is negative
see configs/base.yaml"""
SYNTAX = """\
Traceback (most recent call last):
  File "/model/syntax.py", line 1, in <module>
    exec("x = (1,")
  File "<string>", line 1
    x = (1,
        ^
SyntaxError: '(' was never closed"""
TORCHRUN = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/model/train.py", line 9, in <module>
[rank0]:     loss = model(batch)
[rank0]: ValueError: Expected input batch_size (32) to match target batch_size (16).
[rank1]: Traceback (most recent call last):
[rank1]:   File "/model/train.py", line 12, in <module>
[rank1]:     dist.all_reduce(loss)
[rank1]: torch.distributed.DistBackendError: NCCL error, remote process exited or there was a network error
W1123 10:00:00.000000 71 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 74 closing signal SIGTERM
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/usr/lib/python3/torch/distributed/launcher/api.py", line 264, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 73)
============================================================"""
GLOO = """\
Traceback (most recent call last):
  File "/model/train.py", line 30, in <module>
    dist.all_reduce(grad)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.77.0.12]:43422"""
CUDA = """\
Traceback (most recent call last):
  File "/model/train.py", line 9, in <module>
    out = net(x)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.77 GiB"""
TENSORFLOW = """\
2026-11-23 10:00:00 I tensorflow/core/common_runtime/bfc_allocator.cc:1083] total memory
Traceback (most recent call last):
  File "/model/train.py", line 9, in <module>
    model.fit(x, y)
tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[4096,4096]"""
JAX = """\
Traceback (most recent call last):
  File "/model/train.py", line 9, in <module>
    step(params)
jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."""
CPLUSPLUS = "step 10\nterminate: CUDA error: out of memory (cudaErrorMemoryAllocation)\nAborted (core dumped)"
ACCESS_DENIED = "botocore.exceptions.ClientError: An error occurred (AccessDenied)"


def read(text: str) -> Sign:
    sign = read_signs(text.split("\n"))
    assert sign is not None
    return sign


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (PLAIN, "user.traceback", "KeyError: 4100"),
        (CHAINED, "user.traceback", "RuntimeError: no shard could be opened"),
        (GROUP, "user.traceback",
         "ExceptionGroup: two workers failed (2 sub-exceptions): ValueError: bad shape (3, 4)"),
        (NOTE, "user.traceback", "ValueError: lr is negative"),
        (SYNTAX, "user.traceback", "SyntaxError: '(' was never closed"),
        (TORCHRUN, "user.traceback", "ValueError: Expected input batch_size (32) to match target batch_size (16)."),
        (GLOO, "user.traceback", GLOO.rsplit("\n", maxsplit=1)[-1]),
        (CUDA, "user.cuda_oom", CUDA.rsplit("\n", maxsplit=1)[-1]),
        (TENSORFLOW, "user.cuda_oom", TENSORFLOW.rsplit("\n", maxsplit=1)[-1]),
        (JAX, "user.cuda_oom", JAX.rsplit("\n", maxsplit=1)[-1]),
        (CPLUSPLUS, "user.cuda_oom", "terminate: CUDA error: out of memory (cudaErrorMemoryAllocation)"),
        # A program that makes its batch smaller and goes on fails of something else.
        (f"{CUDA}\nretrying with batch 16\n{PLAIN}", "user.traceback", "KeyError: 4100"),
    ],
)  # fmt: skip
def test_read_signs_reports_last_own_exception_and_marks_lost_peer_as_victim(text: str, kind: str, said: str) -> None:
    sign = read(text)
    assert (sign.kind, sign.text, sign.is_victims) == (kind, said, text is GLOO)


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("OSError: [Errno 28] No space left on device", "data.disk_full"),
        ("OSError: [Errno 122] Disk quota exceeded: '/results/x'", "data.disk_full"),
        ("OSError: [Errno 5] Input/output error: '/data/a'", "node.disk"),
        ("OSError: [Errno 116] Stale file handle", "node.disk"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "node.gpu"),
        ("botocore.exceptions.NoCredentialsError: Unable to locate credentials", "data.credentials"),
        (f"{ACCESS_DENIED} when calling the GetObject operation", "data.credentials"),
        ("botocore.errorfactory.NoSuchBucket: An error occurred (NoSuchBucket) when calling", "data.missing"),
        ("MemoryError", "user.memory"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB", "user.memory"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes", "user.memory"),
        ("PermissionError: [Errno 13] Permission denied: '/data'", "user.traceback"),
        ("KeyboardInterrupt", "user.traceback"),
    ],
)
def test_read_signs_derives_incident_kind_from_exception(last: str, kind: str) -> None:
    sign = read(f'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n{last}')
    assert (sign.kind, sign.text, sign.where) == (kind, last, 'File "a.py", line 1, in <module>')


LATER = "\n".join(f"step {number}" for number in range(AFTERWORDS + 1))


@pytest.mark.parametrize(
    "text",
    [
        *("", "done", "CUDA is fast", "Traceback (most recent call last):", "error: 3\nbye"),
        pytest.param(f"{PLAIN}\n{LATER}", id="long-before-the-end"),
        pytest.param(f"{CPLUSPLUS}\n{LATER}", id="message-long-before-the-end"),
        pytest.param("Traceback (most recent call last):\n" * 2000, id="hostile-tracebacks"),
        pytest.param("a" * 65536, id="hostile-line"),
        pytest.param("| + " * 9000, id="hostile-groups"),
    ],
)
def test_read_signs_returns_none_for_log_without_cause(text: str) -> None:
    assert read_signs(text.split("\n")) is None


def test_tracebacks_splits_chained_exceptions_and_keeps_groups_whole() -> None:
    names = [one.text.partition(":")[0] for one in tracebacks(CHAINED.split("\n"))]
    assert names == ["FileNotFoundError", "RuntimeError"]
    assert len(tracebacks(GROUP.split("\n"))) == 1
