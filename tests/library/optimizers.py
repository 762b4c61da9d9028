"""Prints what torch makes of the optimizers, clipping and schedules of `src/train/update`, as rows
that its tests hold. Written from torch's own classes; LARS, which torch lacks, from its paper
(You, Gitman, Ginsburg 2017, Algorithm 1). Run: python tests/library/optimizers.py
"""

import math

import torch

STEPS, COUNT = 4, 4
# Three tensors, as a test's layout has them: a weight, a norm's weight, a weight.
SIZES = {"conv": 6, "norm": 3, "head": 4}


def first():
    start, tensors = 0, {}
    for name, size in SIZES.items():
        values = [(i - 5) / 8 for i in range(start, start + size)]
        tensors[name] = torch.tensor(values, dtype=torch.float32, requires_grad=True)
        start += size
    return tensors


def gradients(step):
    """Sums over COUNT samples: multiples of 1/16, so that text holds them exactly."""
    return [((7 * i + 5 * step) % 13 - 6) / 16 * COUNT for i in range(sum(SIZES.values()))]


def set_gradients(tensors, step):
    rest = [g / COUNT for g in gradients(step)]
    for tensor in tensors.values():
        tensor.grad = torch.tensor(rest[: tensor.numel()], dtype=torch.float32)
        rest = rest[tensor.numel() :]


def show(name, tensors):
    values = [v for tensor in tensors.values() for v in tensor.detach().tolist()]
    print(f"    // {name}\n    [" + ", ".join(f"{v:.9}" for v in values) + "],")


def trained(name, make, clip=None):
    tensors = first()
    optimizer = make(tensors)
    for step in range(STEPS):
        set_gradients(tensors, step)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(tensors.values()), clip)
        optimizer.step()
    show(name, tensors)


def groups(tensors, decay, head_rate=None):
    """Norms are not decayed; the head may have another rate."""
    rows = []
    for name, tensor in tensors.items():
        row = {"params": [tensor], "weight_decay": 0.0 if name == "norm" else decay}
        if name == "head" and head_rate is not None:
            row["lr"] = head_rate
        rows.append(row)
    return rows


def lars(tensors, rate, momentum, decay, trust):
    velocity = {name: torch.zeros_like(t) for name, t in tensors.items()}

    class Lars:
        def step(self):
            with torch.no_grad():
                for name, w in tensors.items():
                    g, local = w.grad, 1.0
                    if name != "norm":
                        local = trust * w.norm() / (w.grad.norm() + decay * w.norm())
                        g = g + decay * w
                    velocity[name] = momentum * velocity[name] + rate * local * g
                    w -= velocity[name]

    return Lars()


def optimizers():
    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    trained("SGD", lambda t: sgd(groups(t, 0.01), lr=0.1, momentum=0.9))
    trained("Nesterov", lambda t: sgd(groups(t, 0.01), lr=0.1, momentum=0.9, nesterov=True))
    trained("AdamW", lambda t: adamw(groups(t, 0.01), lr=0.1, betas=(0.8, 0.99), eps=1e-6))
    trained("LARS", lambda t: lars(t, 0.5, 0.9, 0.01, 0.02))
    trained("clipped", lambda t: sgd(groups(t, 0.01), lr=0.1, momentum=0.9), clip=0.5)
    decayed = lambda t: sgd(list(t.values()), lr=0.1, momentum=0.9, weight_decay=0.01)
    trained("norms decayed too", decayed)
    # All but the head at a tenth of the rate.
    trained("two rates", lambda t: sgd(groups(t, 0.01, 0.1), lr=0.01, momentum=0.9))


def average():
    tensors, optimizer = first(), None
    optimizer = torch.optim.SGD(groups(tensors, 0.01), lr=0.1, momentum=0.9)
    model = torch.nn.ParameterList(tensors.values())
    mean = torch.optim.swa_utils.get_ema_multi_avg_fn(0.75)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=mean)
    averaged.update_parameters(model)
    for step in range(STEPS):
        set_gradients(tensors, step)
        optimizer.step()
        averaged.update_parameters(model)
    show("averaged (decay 0.75)", dict(enumerate(averaged.module)))


def schedules():
    steps = 20
    of = {
        "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, max_lr=0.4, total_steps=steps, pct_start=0.3, cycle_momentum=False
        ),
        "polynomial": lambda o: torch.optim.lr_scheduler.PolynomialLR(o, steps, power=2),
        "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, steps),
        "step": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [10, 15], gamma=0.1),
    }
    for name, make in of.items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
        schedule = make(optimizer)
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        assert all(math.isfinite(rate) for rate in rates)
        print(f"    // {name}\n    [" + ", ".join(f"{rate:.12}" for rate in rates) + "],")


if __name__ == "__main__":
    print(f"// torch {torch.__version__}")
    optimizers()
    average()
    schedules()
