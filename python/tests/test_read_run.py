"""What read_run promises: of written folders, and of the real run that KINTSUGI_RUN names."""

import csv
import importlib.util
import json
import math
import os
import tempfile
import unittest
from pathlib import Path

import kintsugi


def event(step, name, **fields):
    place = {"v": 1, "time": 1.7e9 + step, "seconds": step / 4, "attempt": 1, "generation": 0}
    return json.dumps({**place, "step": step, "rank": 0, "event": name, "fields": fields})


def told(step, loss):
    fields = {"epoch": 0, "loss": loss, "error": 0.5, "samples": 8, "learning_rate": 0.1}
    return event(step, "step", seconds=0.2, **fields)


def evaluated(step, error):
    return event(step, "evaluation", error=error, loss=1.0, samples=10, seconds=0.1)


class OfAFolder(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)

    def run_of(self, *lines, end="\n"):
        (self.folder / "events.jsonl").write_text("\n".join(lines) + end)
        return kintsugi.read_run(self.folder)

    def test_what_a_rollback_took_away_is_in_the_events_alone(self):
        restarted = event(4, "restarted", **{"from": "checkpoint", "lost_steps": 2})
        for back in (restarted, event(4, "failure_detected", phase="vote", error="they differ")):
            run = self.run_of(told(4, 2.0), evaluated(4, 0.3), told(5, 9.0), back, told(6, 1.0))
            steps = [(row["step"], row["loss"]) for row in run.steps]
            self.assertEqual(steps, [(4, 2.0), (6, 1.0)])
            self.assertEqual([row["error"] for row in run.evaluations], [0.3])
            self.assertEqual(len(run.events), 5)
            self.assertEqual([row["step"] for row in run.metrics], [4, 6])
            self.assertEqual(run.metrics[0]["validation_error"], 0.3)
            self.assertIsNone(run.metrics[1]["validation_error"])

    def test_a_loss_that_is_no_number_is_none_of_json(self):
        self.assertTrue(math.isnan(self.run_of(told(1, None)).steps[0]["loss"]))

    def test_a_line_that_is_being_written_is_passed_over(self):
        run = self.run_of(told(1, 1.0), '{"v":1,"ti#torn', told(2, 1.0), '{"v":1', end="")
        self.assertEqual([row["step"] for row in run.steps], [1, 2])

    def test_what_is_damaged_or_no_run_is_named(self):
        with self.assertRaisesRegex(ValueError, "events.jsonl, line 2"):
            self.run_of(told(1, 1.0), "{", told(2, 1.0))
        with self.assertRaisesRegex(FileNotFoundError, "no run's folder"):
            kintsugi.read_run(self.folder / "nothing")

    def test_a_run_that_was_refused_at_its_start_has_a_result_and_no_events(self):
        (self.folder / "config.toml").write_text("[run]\nname = 'refused'\n")
        (self.folder / "result.json").write_text('{"status":"data_error"}')
        run = kintsugi.read_run(self.folder)
        self.assertEqual((run.events, run.metrics, run.result["status"]), ([], [], "data_error"))

    @unittest.skipIf(importlib.util.find_spec("pandas"), "pandas is there")
    def test_a_frame_without_pandas_says_what_is_missing(self):
        with self.assertRaisesRegex(ImportError, "needs pandas"):
            self.run_of(told(1, 1.0)).frame()

    @unittest.skipUnless(importlib.util.find_spec("pandas"), "pandas is not there")
    def test_a_frame_has_a_row_for_each_step(self):
        frame = self.run_of(told(1, 1.0), evaluated(2, 0.3)).frame()
        self.assertEqual(list(frame.index), [1, 2])
        self.assertEqual(frame.loc[2, "validation_error"], 0.3)


@unittest.skipUnless("KINTSUGI_RUN" in os.environ, "KINTSUGI_RUN names no run")
class OfARealRun(unittest.TestCase):
    def setUp(self):
        self.made = kintsugi.read_run(os.environ["KINTSUGI_RUN"])

    def test_its_rows_are_those_of_metrics_csv(self):
        with open(self.made.path / "metrics.csv", newline="") as file:
            written = list(csv.DictReader(file))
        self.assertEqual(list(written[0]), list(kintsugi.COLUMNS))

        def number(cell):
            return None if cell == "" else float(cell)

        def alike(key, ours, theirs):
            if ours is None or theirs is None:
                return ours is theirs
            # Of seconds three digits are written; of others the last of seventeen may differ.
            slack = 5.1e-4 if key == "seconds" else 1e-12 * abs(theirs)
            both_nan = math.isnan(ours) and math.isnan(theirs)
            return both_nan or abs(ours - theirs) <= slack

        self.assertEqual(len(self.made.metrics), len(written))
        for ours, theirs in zip(self.made.metrics, written):
            for key in kintsugi.COLUMNS:
                self.assertTrue(alike(key, ours[key], number(theirs[key])), (key, ours, theirs))

    def test_it_ends_where_its_result_says(self):
        self.assertEqual(self.made.result["status"], "completed")
        self.assertEqual(self.made.steps[-1]["step"], self.made.result["steps"])
        error = self.made.result["validation"]["error"]
        self.assertEqual(self.made.evaluations[-1]["error"], error)
        self.assertIn("seed", self.made.config)


if __name__ == "__main__":
    unittest.main()
