"""Prints what torch makes of smoothed and mixed targets, and where torchvision's CutMix cuts, as rows
that tests of `src/engine/targets.rs` and `src/data/view/mixing.rs` hold. Run:
python -P tests/library/soft_targets.py
"""

from unittest import mock

import torch
from torchvision.transforms import v2

CLASSES, SAMPLES = 5, 4


def losses():
    logits = torch.tensor(
        [[((7 * c + 5 * i) % 11 - 5) / 4 for c in range(CLASSES)] for i in range(SAMPLES)],
        requires_grad=True,
    )
    labels = torch.tensor([1, 4, 0, 1])
    hard = torch.nn.functional.one_hot(labels, CLASSES).float()
    # As v2.MixUp and v2.CutMix mix targets.
    mixed = hard.roll(1, 0).mul_(1 - 0.3).add_(hard.mul(0.3))
    for name, target, smoothing in [
        ("label_smoothing=0.1", labels, 0.1),
        ("mixed", mixed, 0.0),
        ("mixed, label_smoothing=0.1", mixed, 0.1),
    ]:
        logits.grad = None
        loss = torch.nn.CrossEntropyLoss(label_smoothing=smoothing, reduction="sum")
        value = loss(logits, target)
        value.backward()
        gradient = ", ".join(f"{v:.7}" for v in logits.grad.flatten().tolist())
        print(f"    // {name}\n    ({value.item():.8}, [{gradient}]),")


def boxes():
    for share, at in [(0.3, (0, 19)), (0.75, (10, 3)), (0.0, (10, 10)), (0.99, (5, 5)), (1.0, (4, 9))]:
        cutmix = v2.CutMix(num_classes=CLASSES, alpha=1.0)
        draws = iter([torch.tensor([at[0]]), torch.tensor([at[1]])])
        cutmix._dist = mock.Mock(sample=lambda _: torch.tensor(share, dtype=torch.float64))
        with mock.patch("torch.randint", lambda *_, **__: next(draws)):
            params = cutmix.make_params([torch.zeros(2, 3, 20, 20)])
        x1, y1, x2, y2 = params["box"]
        kept = params["lam_adjusted"]
        print(f"({share}, {list(at)}, [{x1}, {y1}], [{x2}, {y2}], {kept:.9}),")


losses()
boxes()
