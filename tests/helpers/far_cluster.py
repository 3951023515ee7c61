"""A cluster without Ray: its head has a results root of its own, which this machine sees only through a job's log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made_results import SPEC
from ray.job_submission import JobDetails

from hpxfer.jobs import answers
from hpxfer.jobs.commands import ROOT_KEY, SWEEP_KEY
from hpxfer.jobs.request import Request, answer_line, read_answer

JOB = "hpxfer-a-1"
ADDRESS = "http://head:8265"


class Far:
    """A cluster that knows one job."""

    address = ADDRESS

    def __init__(self, root: Path, state: str = "SUCCEEDED", metadata: dict[str, str] | None = None) -> None:
        self.root, self.state = root, state
        self.metadata = metadata or {SWEEP_KEY: SPEC.name, ROOT_KEY: str(root)}
        self.asked: list[str] = []

    def info(self, job: str) -> JobDetails:
        known = {"submission_id": job, "status": self.state, "metadata": self.metadata}
        return JobDetails(type="SUBMISSION", entrypoint="", **known)

    def ask(self, request: Request) -> tuple[dict[str, Any], dict[str, bytes]]:
        self.asked.append(request.action)
        data, sent = answers.answer(request, self.root / "no sweep travels")
        answer = read_answer(answer_line(request.nonce, data, sent), request.nonce)
        assert answer is not None
        return answer
