"""FfDL's `emetrics_file`: records that the training itself writes, as JSON lines in files `evaluation-metrics.txt`."""

from __future__ import annotations

from dataclasses import replace

from ffdl_batch.collectors.followed_file import MOST_RECORDS, FollowedFile, Place, in_turn
from ffdl_batch.collectors.learner_files import Found, files_below
from ffdl_batch.collectors.source import Clock, Harvest, Notes, State, sub_run
from ffdl_batch.domain.metrics.records import CollectorSpec, MetricRecord, RecordError, decode_record

FILE = "evaluation-metrics.txt"
LINE_BYTES = 1 << 20
DEPTH, MOST_FILES = 8, 256


class EmetricsSource:
    """Reads the files of that name anywhere below the directories."""

    def __init__(self, spec: CollectorSpec, clock: Clock, notes: Notes, state: State) -> None:
        self._spec = spec
        self._clock = clock
        self._notes = notes
        self._resume: dict[str, Place] = {path: Place(*place) for path, place in state.get("files", {}).items()}
        self._files: dict[str, tuple[FollowedFile, str]] = {}
        """Each with its sub-run, by path."""
        self._last = ""

    def poll(self, final: bool) -> Harvest:
        """Read at most one chunk of each file."""
        records: list[MetricRecord] = []
        more = False
        listed = self._listed()
        for path in in_turn({*listed, *self._files}, self._last):
            if len(records) > MOST_RECORDS:
                return Harvest(records, True)
            found = listed.get(path)
            if path not in self._files and found is not None:
                file = FollowedFile(LINE_BYTES, self._resume.get(path), self._notes.note)
                self._files[path] = file, sub_run(found.names)
            file, subid = self._files[path]
            over = final or (found is None and file.deleted)
            lines, again = file.lines({} if found is None else {0: found}, over)
            if over and not again and not final:
                self._files.pop(path)
                self._resume.pop(path, None)
                file.close()
            self._last = path
            more |= again
            for line in lines:
                record = self._record(line.text, path, subid) if line.text.strip() else None
                if record is not None:
                    records.append(record)
        return Harvest(records, more)

    def _listed(self) -> dict[str, Found]:
        files: list[Found] = []
        for root in (self._spec.log_dir, *self._spec.more_dirs):
            files += files_below(root, lambda name: name == FILE, DEPTH, MOST_FILES)
        self._notes.too_many(files, MOST_FILES)
        return {file.path: file for file in files}

    def _record(self, line: str, path: str, subid: str) -> MetricRecord | None:
        try:
            record = decode_record(line, time_ms=int(self._clock() * 1000))
        except RecordError as error:
            self._notes.note("wrong_lines", f"{path}: a line {error}, and is left out: {line[:200]!r}")
            return None
        return replace(record, training_id=self._spec.training_id, subid=record.subid or subid)

    def state(self) -> State:
        """Return where the next line of each file begins."""
        places = dict(self._resume)
        places.update({path: file.place for path, (file, _) in self._files.items() if file.place is not None})
        return {"files": {path: list(place) for path, place in places.items()}}
