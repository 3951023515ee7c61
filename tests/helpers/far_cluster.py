"""A cluster without Ray: its head has a results root of its own, which this machine sees only through a job's log."""

from __future__ import annotations

from pathlib import Path

from made_results import SPEC

from hpxfer.jobs import answers
from hpxfer.jobs.client import JobInfo
from hpxfer.jobs.commands import ROOT_KEY, SWEEP_KEY
from hpxfer.jobs.request import Answer, Request, answer_lines, read_answer

JOB = "hpxfer-a-1"
ADDRESS = "http://head:8265"


def job_info(job: str, state: str, metadata: dict[str, str]) -> JobInfo:
    """Return what a cluster knows of a job."""
    return JobInfo(id=job, state=state, message="", metadata=metadata)


class Far:
    """A cluster that knows one job."""

    address = ADDRESS

    def __init__(self, root: Path, state: str = "SUCCEEDED", metadata: dict[str, str] | None = None) -> None:
        self.root, self.state = root, state
        self.metadata = metadata or {SWEEP_KEY: SPEC.name, ROOT_KEY: str(root)}
        self.asked: list[str] = []

    def info(self, job: str) -> JobInfo:
        return job_info(job, self.state, self.metadata)

    def ask(self, request: Request, sweep: str) -> Answer:
        self.asked.append(request.action)
        data, sent = answers.answer(request, self.root / "no sweep travels")
        answer = read_answer("\n".join(answer_lines(request.nonce, data, sent)), request.nonce)
        assert answer is not None
        return answer
