"""A drill's report for a person: labelled lines, the result, and what to do about it."""

from __future__ import annotations

from ffdl_batch.cli.commands.drill.report import NODE_FAIL, DrillReport
from ffdl_batch.cli.render.formatting import format_time, print_line
from ffdl_batch.domain.job_state import TERMINAL
from ffdl_batch.domain.launch.limits import LeadFrom


def print_report(report: DrillReport) -> None:
    """The report."""
    print_line("Drill", f"{report.event} on attempt {report.attempt} of {report.job_id}")
    print_line("Ended because", report.message)
    if report.interruption and not report.played:
        print_line("", "(not by what was played: something else interrupted it first)")
    print_line("Checkpoint", _checkpoint(report))
    if report.saved_at is not None and report.saved_age_s is not None:
        age = f", {report.saved_age_s:.1f} s before the event" if report.event == NODE_FAIL else ""
        print_line("Newest file", f"{format_time(report.saved_at)}{age}")
    if report.event != NODE_FAIL:
        print_line("Lead", _lead(report))
        print_line("Warning", _warning(report))
    print_line("Next attempt", _next(report))
    print_line("Result", _result(report))
    print_line("What to do", _cure(report))


def _checkpoint(report: DrillReport) -> str:
    if report.event == NODE_FAIL:
        return "saved earlier" if report.saved_at is not None else "none was saved"
    if not report.asked:
        return "the learners were not asked for one"
    took = "" if report.took_s is None else f" after {report.took_s:.1f} s"
    if report.confirmed:
        return f"asked for, confirmed{took}"
    if report.answered:
        return f"asked for; the learners ended by themselves{took}, but left no new checkpoint"
    return "asked for; the learners did not react and were ended"


def _lead(report: DrillReport) -> str:
    """What is needed, and what is there."""
    needed = "nothing was measured" if report.lead_needed_s is None else f"{report.lead_needed_s} s needed"
    whose = "a job of this manifest" if report.trial else "this job"
    if not report.lead_known:
        return f"{needed}; what {whose} keeps is not known here, its directory cannot be read"
    if report.lead_s is None:
        return f"{needed}; {whose} keeps none"
    return f"{needed}; {whose} keeps {report.lead_s} s (from: {report.lead_from or 'unknown'})"


def _warning(report: DrillReport) -> str:
    """What the time limit would do to it, and the cure; "" where it is well."""
    if report.lead_known and report.lead_s is None:
        return (
            "nobody warns it before a time limit; leave out batch.signal (--signal) and batch.checkpoint.lead_s: 0 "
            "to have it warned"
        )
    if not report.lead_is_short:
        return ""
    late = f"{report.lead_s} s before a time limit is too late to save"
    if report.lead_from == LeadFrom.TIME_LIMIT.value:
        at_least = 2 * (report.lead_needed_s or 0)
        return f"{late}; the lead is half of the time limit at most: ask for {at_least} s or more (batch: time: …)"
    return f"{late}; write into the manifest batch: checkpoint: lead_s: {report.lead_needed_s}"


def _next(report: DrillReport) -> str:
    if report.next_attempt is not None and report.next_started_after_s is not None:
        since = "the resume" if report.event == "halt" else "the attempt's end"
        return f"{report.next_attempt}, PROCESSING {report.next_started_after_s:.1f} s after {since}"
    if report.state not in {state.value for state in TERMINAL}:
        return f"the job is {report.state}; it was not waited for any longer (--queue-timeout)"
    if report.state == "HALTED":
        return f"none; ffdl resume {report.job_id} goes on"
    return f"none; the job is {report.state}"


def _result(report: DrillReport) -> str:
    if report.event != NODE_FAIL:
        return "a checkpoint was confirmed" if report.passed else "no checkpoint was confirmed"
    if report.passed:
        return "there is a checkpoint to go on from, and the next attempt started"
    if report.saved_at is None:
        return "no saved checkpoint is known"
    return "there is a checkpoint to go on from; the next attempt has not started" + (" yet" if report.gave_up else "")


def _cure(report: DrillReport) -> str:
    """What a training that failed the drill has to do."""
    if report.passed:
        return ""
    if report.event == NODE_FAIL:
        return "save regularly below $CHECKPOINT_DIR: a lost node does not ask" if report.saved_at is None else ""
    if not report.asked:
        return ""
    if report.answered:
        return "write a new file below $CHECKPOINT_DIR when asked, also where nothing is new, then exit with 0"
    return (
        "catch the checkpoint signal (batch.checkpoint.signal, USR2 by default) or look for $JOB_STATE_DIR/halt, save "
        "below $CHECKPOINT_DIR, then exit with 0"
    )
