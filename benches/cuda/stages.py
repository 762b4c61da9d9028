"""The stages of `prove`: what is run on a card, what of it must hold, what is only reported."""

import concurrent.futures
import json
import os
import re
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import strays

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = ROOT / "configs/mlp_synthetic.toml"
# Of the loss of the first step, relative: sums of f32 in another order.
FIRST_LOSS_MAX = 1e-5
# How much of what a failed program said is kept.
SAID_CHARACTERS = 3000
# Of later settings for a key the last counts.
ALL_RUNS = ["evaluation.every=never", "checkpoint.every=never", "observe.tensorboard=false",
            "recovery.start_limit=120s", "recovery.time_limit=60s"]


def write(file, record):
    beside = file.with_suffix(".partial")
    beside.write_text(json.dumps(record, indent=1) + "\n")
    beside.replace(file)


class Place:
    """Where a stage works and what with."""

    def __init__(self, work, out, python, tiny):
        self.work, self.out, self.python, self.tiny = work, out, python, tiny
        self.program = os.environ["KINTSUGI_BINARY"]


class Record:
    """What a stage found out, on disk as soon as it is known."""

    def __init__(self, stage, out):
        self.file = out / f"{stage}.json"
        self.holds = True
        self.all = {"stage": stage, "lines": [], "cases": []}

    def case(self, **case):
        self.all["cases"].append(case)
        write(self.file, self.all)

    def line(self, text, holds=True):
        self.holds = self.holds and holds
        self.all["lines"].append(text if holds else f"FAILED: {text}")
        write(self.file, self.all)

    def skip(self, why):
        self.holds = None
        self.all["lines"].append(why)

    def end(self):
        write(self.file, {**self.all, "holds": self.holds})


def ran(work, line, limit, **more):
    """(exit code, stdout, stderr, seconds); None: past the limit. What it leaves is removed."""
    begun = time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    process = subprocess.Popen([str(word) for word in line], text=True, errors="replace",
                               cwd=ROOT, start_new_session=True, **pipes, **more)
    out, err, names, late = "", "", set(), False
    # A first short wait, after which a run has ranks whose names can be seen; then the limit, a time
    # to end as it wants to, and a moment for pipes to close.
    for wait in (1, limit - 1, 8, 5):
        try:
            out, err = process.communicate(timeout=wait)
            break
        except subprocess.TimeoutExpired:
            names |= strays.runs(work)
            if late:
                strays.end(work)
            elif time.monotonic() - begun >= limit:
                late = True
                process.terminate()
    seconds = round(time.monotonic() - begun, 2)
    # Runs that did not complete keep their state; nobody will go on with these.
    strays.forget(names)
    return None if late else process.returncode, out, err, seconds


def last_json(text):
    """The object on the last line, if there is one."""
    try:
        return json.loads(text.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return None


def play(place, name, settings, ranks=1, limit=60):
    """A run under `launch`: what it left, as a case of a record."""
    folder = place.work / "runs" / name
    line = [place.program, "launch", "-n", ranks, CONFIG, "--run-dir", folder]
    for setting in ALL_RUNS + settings:
        line += ["-s", setting]
    code, _, said, seconds = ran(place.work, line, limit)
    case = {"case": name, "settings": settings, "ranks": ranks, "code": code, "seconds": seconds}
    try:
        result = json.loads((folder / "result.json").read_text())
        keys = ["status", "reason", "steps", "exact", "state_sha256", "recoveries", "restarts"]
        case.update({key: result.get(key) for key in keys})
        case["run_seconds"] = result.get("seconds")
    except (OSError, ValueError):
        pass
    steps = {}
    try:
        for event in map(json.loads, (folder / "events.jsonl").read_text().splitlines()):
            if event.get("event") == "step":
                steps[event["step"]] = event["fields"]
    except (OSError, ValueError):
        pass
    case["losses"] = [steps[at]["loss"] for at in sorted(steps)]
    if len(steps) == case.get("steps"):
        # The first ones compile kernels.
        later = [steps[at]["seconds"] for at in sorted(steps)][1:]
        case["step_ms"] = round(1e3 * statistics.median(later), 2) if later else None
    if code != 0 or case.get("status") != "completed":
        case["said"] = said[-SAID_CHARACTERS:]
    shutil.rmtree(folder, ignore_errors=True)
    return case


def last_words(case):
    """The last line that says something."""
    lines = [line.strip() for line in case.get("said", "").splitlines() if line.strip()]
    return f"ended with {case['code']}: {lines[-1] if lines else 'it said nothing'}"[:240]


def device(place, record):
    ask = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used,pci.bus_id",
           "--format=csv,noheader"]
    try:
        _, out, _, _ = ran(place.work, ask, 20)
        record.case(case="nvidia-smi", out=out.strip())
        record.line(f"nvidia-smi: {out.strip()}")
    except OSError as error:
        record.line(f"nvidia-smi: {error}")
    if place.python:
        ask = ("import torch, torchvision; print(torch.__version__, torchvision.__version__, "
               "torch.version.cuda, torch.backends.cudnn.version(), torch.cuda.get_device_name())")
        try:
            code, out, said, seconds = ran(place.work, [place.python, "-c", ask], 60)
            record.case(case="torch", code=code, out=out.strip(), said=said[-SAID_CHARACTERS:])
            record.line(f"torch, torchvision, CUDA, cuDNN, card: {out.strip()} ({seconds} s)")
        except OSError as error:
            record.line(f"torch: {error}")
    code, out, said, seconds = ran(place.work, [place.program, "doctor", "--json"], 60)
    report = last_json(out)
    record.case(case="doctor", code=code, report=report, said=said[-SAID_CHARACTERS:])
    if report is None:
        return record.line(f"doctor ended with {code}: {said[-300:]}", False)
    for finding in report["findings"]:
        if finding["name"] in ("GPU", "CUDA libraries"):
            advice = f"; {finding['advice']}" if finding["advice"] else ""
            text = f"{finding['name']}: {finding['value']}{advice}"
            record.line(text, finding["state"] == "ok")
        elif finding["state"] in ("warning", "broken"):
            record.line(f"{finding['name']}: {finding['value']}")
    record.line(f"recovery works: {report['recovery_works']} ({seconds} s)", report["recovery_works"])


def relative(ours, theirs):
    return [abs(a - b) / max(abs(b), 1e-30) for a, b in zip(ours, theirs)]


def models(place):
    """(name, settings) of what losses are compared on."""
    if place.tiny:
        return [("mlp", ["train.steps=3"]),
                ("resnet20", ["train.steps=2", "model.width=1", "data.image_size=8"])]
    pictures = ["model.width=1", "data.image_size=64", "train.steps=20", "optimizer.learning_rate=0.01"]
    return [("mlp", ["train.steps=20"]), ("resnet18", pictures), ("mobilenet_v2", pictures)]


def losses(place, record):
    batch = "8" if place.tiny else "32"
    # A step that is evaluated is an event of its own: short ones share one else.
    fixed = [f"train.global_batch={batch}", "train.owners=1", 'evaluation.every="1steps"',
             f"data.synthetic_samples={96 if place.tiny else 480}"]
    processors = 1 if place.tiny else min(8, len(os.sched_getaffinity(0)))
    for model, more in models(place):
        settings = fixed + [f"model.name={model}"] + more
        kinds = {"cuda f32": ["device.kind=cuda"], "cpu f32": ["device.kind=cpu", f"train.threads={processors}"],
                 "cuda bf16": ["device.kind=cuda", "device.precision=bf16"]}
        if not place.tiny:
            kinds["cuda tf32"] = ["device.kind=cuda", "device.precision=tf32"]
        found = {}
        for kind, own in kinds.items():
            case = play(place, f"{model}-{kind.replace(' ', '-')}", settings + own)
            record.case(**case)
            if case["code"] == 0:
                found[kind] = case
            else:
                record.line(f"{model}, {kind}: {last_words(case)}", False)
        compare(record, model, found)


def compare(record, model, found):
    """Each kind with the card's f32, and that with the processor's."""
    pairs = [("cuda f32", "cpu f32"), ("cuda bf16", "cuda f32"), ("cuda tf32", "cuda f32")]
    for one, other in pairs:
        if one not in found or other not in found:
            continue
        own, base = found[one]["losses"], found[other]["losses"]
        apart = relative(own, base)
        text = (f"{model}, {one} / {other}: first {apart[0]:.1e}, largest {max(apart):.1e} apart; "
                f"loss {own[0]:.4f} to {own[-1]:.4f} / {base[0]:.4f} to {base[-1]:.4f}; "
                f"step {found[one].get('step_ms')} / {found[other].get('step_ms')} ms")
        whole = all("step_ms" in found[kind] for kind in (one, other))
        record.line(text, whole and (other != "cpu f32" or apart[0] <= FIRST_LOSS_MAX))


def spoken_recoveries(case):
    """"respawn 0.31 s (spawn 0.16, ...)", one after another."""
    all_of = []
    for recovery in case.get("recoveries") or []:
        phases = {name: part for name, part in recovery["seconds"].items() if part >= 0.01}
        parts = ", ".join(f"{n} {s:.2f}" for n, s in sorted(phases.items(), key=lambda p: -p[1]))
        all_of.append(f"{recovery['rung']} {sum(recovery['seconds'].values()):.2f} s ({parts})")
    return "; ".join(all_of)


def bits(place, record):
    kills = ('faults.plan=[{kind="kill", rank=1, step=4, phase="in_update"},'
             '{kind="kill", rank=0, step=8, phase="in_all_reduce"}]')
    lost = 'faults.plan=[{kind="device_error", rank=1, step=5, phase="in_update"}]'
    spares = ['recovery.ladder=["spare"]', "recovery.spares=2", kills]
    shrink = ['recovery.ladder=["shrink"]', kills]
    # (name, ranks, settings, recoveries)
    runs = [("alone", 1, [], 0), ("again", 1, [], 0), ("two ranks", 2, [], 0),
            ("three, two killed", 3, [kills], 2), ("three, spares", 3, spares, 2),
            ("three, shrunk", 3, shrink, 2), ("three, a lost card", 3, [lost], 1)]
    common = ["device.kind=cuda", "train.steps=12", "train.global_batch=24", "train.owners=12"]
    small = ["model.name=resnet20", "model.width=1", "data.image_size=8"]
    large = ["model.name=resnet18", "model.width=1", "data.image_size=64"]
    if place.tiny:
        # resnet20 is judged by losses; here most time is starts.
        groups, runs = [("mlp", [])], [runs[at] for at in (0, 2, 3, 4)]
    else:
        groups = [("resnet20", small), ("resnet18 bf16", large + ["device.precision=bf16"])]
    for group, settings in groups:
        first = None
        for name, ranks, more, recoveries in runs:
            label = f"{group}, {name}"
            case = play(place, label.replace(", ", "-").replace(" ", "-"),
                        common + settings + more, ranks)
            record.case(**case)
            digest = case.get("state_sha256")
            if case["code"] != 0 or not digest:
                record.line(f"{label}: {last_words(case)}", False)
                continue
            first = first or digest
            count = len(case["recoveries"]) + len(case["restarts"])
            same = digest == first and case["exact"]
            repaired = f"; {spoken_recoveries(case)}" if recoveries else ""
            text = f"{label}: {digest[:12]}, {count} recoveries{repaired}, {case['seconds']} s"
            record.line(text, same and count == recoveries)


def kernels(place, record):
    tests = place.work / "bin/library-tests"
    tests = Path(os.environ.get("KINTSUGI_LIBRARY_TESTS") or tests)
    if not tests.exists():
        return record.skip("the pack has no test program (KINTSUGI_LIBRARY_TESTS)")
    line = [tests, "gradients::", "sweep::", "bf16::", "--test-threads", "8"]
    real = {**os.environ, "KINTSUGI_REAL_CUDA": "1", "KINTSUGI_SHAPES": "100"}
    code, out, said, seconds = ran(place.work, line, 140, env=real)
    passed = len(re.findall(r"^test .* \.\.\. ok$", out, re.M))
    failed = re.findall(r"^test (.*) \.\.\. FAILED$", out, re.M)
    record.case(case="tests", code=code, passed=passed, failed=failed,
                said=(out[-20000:] + said[-SAID_CHARACTERS:]) if code != 0 else "")
    text = f"{passed} tests of layers pass, {len(failed)} fail ({seconds} s) {' '.join(failed)}"
    record.line(text, code == 0 and passed > 0)


def memory(place, record):
    """Beyond a budget of the card's memory: same bits in every mode, with kills; and what it costs."""
    common = ["device.kind=cuda", "train.steps=6", "train.owners=4", "model.width=1",
              "train.global_batch=64", "evaluation.batch=8"]
    model = (["model.name=resnet20", "data.image_size=16"] if place.tiny else
             ["model.name=resnet18", "data.image_size=64"])
    kill = 'faults.plan=[{kind="kill", rank=1, step=3, phase="%s"}]'
    # (name, ranks, settings, recoveries)
    runs = [("in core", 1, [], 0), ("swap", 2, ["memory.mode=swap", kill % "in_swap_out"], 1),
            ("recompute", 2, ["memory.mode=recompute", kill % "in_recompute"], 1),
            ("unified", 1, ["memory.mode=unified"], 0)]
    if not place.tiny:
        runs += [("swap_sync", 2, ["memory.mode=swap_sync", kill % "in_swap_in"], 1)]
    first = None
    for name, ranks, more, recoveries in runs:
        case = play(place, "memory-" + name.replace(" ", "-"), common + model + more, ranks)
        record.case(**case)
        digest = case.get("state_sha256")
        if case["code"] != 0 or not digest:
            record.line(f"{name}: {last_words(case)}", False)
            continue
        first = first or digest
        count = len(case["recoveries"]) + len(case["restarts"])
        text = f"{name}: {digest[:12]}, {count} recoveries, {case['seconds']} s"
        record.line(text, digest == first and case["exact"] and count == recoveries)
    name, side, batch, factors = ("resnet20", 32, 8, [2]) if place.tiny else ("resnet50", 224, 256, [2, 4])
    line = [place.program, "bench", "memory", "--device", "cuda", "--model", name, "--json",
            "--image-size", side, "--batch", batch, "--turns", 5]
    for factor in factors:
        line += ["--factor", factor]
    code, out, said, seconds = ran(place.work, line, 150)
    report = last_json(out) or {}
    record.case(case="bench", code=code, report=report, said=said[-SAID_CHARACTERS:])
    # Its exit code judges forecasts and overhead, which are figures here.
    if not report.get("cases"):
        return record.line(f"bench memory: {said.strip()[-300:]}", False)
    whole = report["cases"][0]["median"]
    for case in report["cases"][1:]:
        holds = case["phases"]["holds, MB"]
        record.line(f"{name}, batch {batch}, {case['case']}: {whole / case['median']:.0%} of the speed "
                    f"in core ({case['median']:.1f} ms), holds {holds:.0f} MB")


def compile_together(place, record, models, batch, side, precision):
    """PyTorch's variants into its cache: one after another they take most of the stage's time."""
    threads = min(8, len(os.sched_getaffinity(0)))
    begun = time.monotonic()

    def one(model):
        line = [place.python, ROOT / "benches/step.py", "cuda", model, precision, side, batch, threads]
        return ran(place.work, line, 200)[0]

    with concurrent.futures.ThreadPoolExecutor(len(models)) as pool:
        codes = dict(zip(models, pool.map(one, models)))
    seconds = round(time.monotonic() - begun, 1)
    record.case(case=f"PyTorch, {precision}", codes=codes, seconds=seconds)
    failed = [model for model, code in codes.items() if code != 0]
    but = f", but for {', '.join(failed)}" if failed else ""
    record.line(f"PyTorch, {precision}: compiled side by side in {seconds} s{but}")


def step_once(place, model, batch, side, precision, python):
    line = [place.program, "bench", "--json", "step", "--device", "cuda", "--model", model]
    line += ["--batch", batch, "--image-size", side, "--precision", precision]
    # Threads copy what is sent; every call is told by itself.
    line += ["--threads", min(8, len(os.sched_getaffinity(0))), "--by-call"]
    line += ["--turns", 2 if place.tiny else 5, *(["--python", python] if python else [])]
    code, out, said, seconds = ran(place.work, line, 240)
    return {"code": code, "seconds": seconds, "report": last_json(out) if code == 0 else None,
            "said": said[-SAID_CHARACTERS:]}


def step(place, record):
    models, batch, side = ["resnet50", "resnet18", "mobilenet_v2", "alexnet"], 256, 224
    if place.tiny:
        models, batch, side = ["mlp"], 8, 16
    for precision in ["bf16", "tf32"]:
        if place.python:
            compile_together(place, record, models, batch, side, precision)
        for model in models:
            label = f"{model}, {side} px, batch {batch}, {precision}"
            case = step_once(place, model, batch, side, precision, place.python)
            record.case(case=label, **case)
            refused = case["code"] not in (0, None) and "device.precision" in case["said"]
            if case["code"] != 0 and place.python and not refused:
                record.line(f"{label}, with python: {last_words(case)}", False)
                case = step_once(place, model, batch, side, precision, None)
                record.case(case=f"{label}, alone", **case)
            if case["report"] is None:
                record.line(f"{label}: {'refused, ' * refused}{last_words(case)}", refused)
                continue
            record.line(f"{label}: {speeds(case['report'], batch)} ({case['seconds']} s)")
            own = own_products(case["report"])
            if own and not place.tiny:
                record.line(f"{label}: slow kernels where cuDNN has plans: {', '.join(own)}", False)


def own_products(report):
    """Kernels that stand in where cuDNN has no plan: for these models it has all."""
    phases = [name for case in report["cases"] if case["case"] == "calls" for name in case["phases"]]
    return [name for name in phases if name.startswith("conv_")]


def speeds(report, batch):
    """Images per second of each, and how many times faster than PyTorch's we are."""
    by_name = {case["case"]: case for case in report["cases"]}
    calls = by_name.pop("calls", {"median": 0, "phases": {}})
    sent = by_name.pop("weights sent", {"median": 0})
    told = [f"{name} {1e3 * batch / case['median']:.0f}/s" if case["median"] else f"{name} failed"
            for name, case in by_name.items()]
    ratios = [f"{name} {ratio:.3f}" for name, ratio in report["ratios"].items() if ratio]
    phases = [f"{name} {part:.1f} ms" for name, part in by_name["step"]["phases"].items()]
    kinds = {}
    for name, part in calls["phases"].items():
        kind = name.split(":")[0]
        kinds[kind] = kinds.get(kind, 0) + part
    largest = sorted(kinds.items(), key=lambda pair: -pair[1])[:12]
    spent = ", ".join(f"{name} {part:.2f}" for name, part in largest)
    return "; ".join([", ".join(told), ", ".join(phases), "times: " + ", ".join(ratios),
                      f"on the card {calls['median']:.1f} ms ({sent['median']:.1f} while weights "
                      f"are sent): {spent}"])


STAGES = {"device": device, "losses": losses, "bits": bits, "kernels": kernels, "memory": memory,
          "step": step}
