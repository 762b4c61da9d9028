"""Reads Kintsugi's run folders. Standard library only.

    import kintsugi
    run = kintsugi.read_run("runs/quick-0123abcd")
    run.evaluations[-1]["error"]
    run.frame()["validation_error"].dropna().plot()   # needs pandas
"""

import json
import math
from pathlib import Path

__all__ = ["Run", "read_run"]

COLUMNS = (
    "step",
    "epoch",
    "seconds",
    "train_loss",
    "train_error",
    "learning_rate",
    "validation_loss",
    "validation_error",
    "validation_error_average",
)
# How a line ends that its writer did not finish.
TORN_MARK = b"#torn"
# Figures that JSON cannot hold are written as null.
NUMBERS = ("loss", "error", "seconds")


class Run:
    """One run as its folder tells it.

    path         the folder
    events       every line of events.jsonl, a dict each, in the order written
    steps        what was told of training, a dict each: step, epoch, time, seconds (since the
                 first start, pauses between two launches not), loss, error, samples,
                 learning_rate, step_seconds
    evaluations  step, time, seconds, loss, error, samples, evaluation_seconds, and average_error
                 where a running average of the weights was judged too
    metrics      both by step: the rows of metrics.csv
    config       the text of config.toml, None where there is none
    result       result.json as a dict, None while there is none

    Steps that a rollback took away are in events alone.
    """

    def __init__(self, path, events, config, result):
        self.path, self.events, self.config, self.result = path, events, config, result
        self.steps = _standing(events, "step", "step_seconds")
        self.evaluations = _standing(events, "evaluation", "evaluation_seconds")

    def __repr__(self):
        return (
            f"<Run {self.path}: {len(self.steps)} reports of steps,"
            f" {len(self.evaluations)} evaluations>"
        )

    @property
    def metrics(self):
        rows = {}
        for told in sorted(self.steps + self.evaluations, key=lambda told: told["time"]):
            row = rows.setdefault(told["step"], dict.fromkeys(COLUMNS))
            row.update(step=told["step"], seconds=told["seconds"])
            if "learning_rate" in told:
                row.update(
                    epoch=told["epoch"],
                    train_loss=told["loss"],
                    train_error=told["error"],
                    learning_rate=told["learning_rate"],
                )
            else:
                row.update(
                    validation_loss=told["loss"],
                    validation_error=told["error"],
                    validation_error_average=told.get("average_error"),
                )
        return [rows[step] for step in sorted(rows)]

    def frame(self):
        """A pandas.DataFrame of `metrics`, indexed by step."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "frame() needs pandas (pip install pandas); metrics, steps and evaluations are"
                " lists of dicts without it"
            ) from error
        return pandas.DataFrame(self.metrics, columns=list(COLUMNS)).set_index("step")


def read_run(path):
    """Reads the run in a folder, finished or under way.

    A run that was refused at its start has a result and no events. Raises FileNotFoundError where
    it is no run's folder, and ValueError with the line where events.jsonl is damaged; a last line
    that is still being written is passed over.
    """
    path = Path(path)
    events, config = path / "events.jsonl", _text(path / "config.toml")
    if config is None and not events.is_file():
        raise FileNotFoundError(f"{path}: no run's folder, it has no events.jsonl")
    events = _events(events) if events.is_file() else []
    return Run(path, events, config, _json(path / "result.json"))


def _events(path):
    body = path.read_bytes()
    found = []
    for number, line in enumerate(body[: body.rfind(b"\n") + 1].split(b"\n"), start=1):
        line = line.strip()
        if not line or line.endswith(TORN_MARK):
            continue
        try:
            event = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        found.append(event)
    return found


def _standing(events, name, length):
    """Events of a name by step, without what a later start or repair took away."""
    rows = {}
    for event in events:
        step = event["step"]
        if event["event"] in ("run_start", "restarted", "failure_detected"):
            rows = {known: row for known, row in rows.items() if known <= step}
        elif event["event"] == name:
            fields = {
                key: math.nan if value is None and key in NUMBERS else value
                for key, value in event["fields"].items()
            }
            fields[length] = fields.pop("seconds")
            rows[step] = {"step": step, "time": event["time"], "seconds": event["seconds"], **fields}
    return [rows[step] for step in sorted(rows)]


def _text(path):
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _json(path):
    text = _text(path)
    return None if text is None else json.loads(text)
