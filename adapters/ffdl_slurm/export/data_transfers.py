"""The lines that fetch data and store results: commands, or comments for stores that need credentials."""

from __future__ import annotations

import shlex

from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreKind
from ffdl_batch.runtimes.data import Data
from ffdl_slurm.export.shell_words import word


def lines_in(data: Data) -> list[str]:
    """Return the lines before the learners start."""
    lines: list[str] = []
    for copy in data.copies:
        target = word(copy.target, filled=False)
        lines.append(f"mkdir -p {target} && cp -a {word(copy.source + '/.', filled=False)} {target}/ || exit 1")
    for number, fetch in enumerate(data.fetches):
        local = word(fetch.local, filled=False)
        lines += [f"mkdir -p {local}", *_moved(fetch, local, f"input {number + 1}", inward=True)]
    return lines


def lines_out(data: Data) -> list[str]:
    """Return the lines after the learners have ended."""
    lines: list[str] = []
    if data.stores.results:
        target = word(data.stores.results, filled=False)
        lines.append(f'mkdir -p {target} && cp -a "$JOB"/results/. {target}/ || status=1')
    for send in data.uploads:
        if _stays(send):
            continue
        lines += _moved(send, word(send.local), "results", inward=False)
    return lines


def _stays(send: Transfer) -> bool:
    """Return whether the data stay in $JOB, as logs and the model do."""
    return "{learner_id}" in send.local or send.local.endswith("_submitted_code")


def _is_open(transfer: Transfer, *, inward: bool) -> bool:
    """Return whether the data can be fetched without credentials."""
    return transfer.store.kind is StoreKind.HTTP and inward and not transfer.store.credentials


def _moved(transfer: Transfer, local: str, what: str, *, inward: bool) -> list[str]:
    store = transfer.store
    prefix = transfer.prefix.replace("{{", "{").replace("}}", "}")
    if _is_open(transfer, inward=inward):
        url = f"{store.endpoint.rstrip('/')}/{prefix.lstrip('/')}"
        return [f"(cd {local} && curl -fsSLO --retry 3 {shlex.quote(url)}) || exit 1"]
    if store.kind is StoreKind.FILE:
        path = word(f"{store.container}/{prefix}", filled=False)
        pair = (f"{path}/.", local) if inward else (f"{local}/.", path)
        return [f"mkdir -p {pair[1]} && cp -a {pair[0]} {pair[1]}/ || exit 1"]
    remote = word("/".join(part for part in (store.container, prefix) if part), filled=False)
    first, second = (f"s3://{remote}", local) if inward else (local, f"s3://{remote}")
    said = f"# {what}: give the command your credentials, and take the mark away; this script has none of them"
    if store.kind is StoreKind.S3:
        endpoint = f" --endpoint-url {shlex.quote(store.endpoint)}" if store.endpoint else ""
        region = f" --region {shlex.quote(store.region)}" if store.region else ""
        return [said, f"# aws{endpoint}{region} s3 sync --only-show-errors {first} {second} || exit 1"]
    first, second = (f"REMOTE:{remote}", local) if inward else (local, f"REMOTE:{remote}")
    return [
        f"{said} (REMOTE is what `rclone config` calls {store.kind.value} at {' '.join(store.endpoint.split())})",
        f"# rclone copy {first} {second} || exit 1",
    ]
