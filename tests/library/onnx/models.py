"""Judges of what is imported from ONNX files and exported to them.

    python onnx/models.py cases FOLDER           the small models beside this, and
                                                 what torch says of them (needs onnx, onnxscript)
    python onnx/models.py make NAME SIDE CLASSES FILE   a model that nobody here wrote, as a file
    python onnx/models.py run FILE.onnx LIST OUT    what ONNX Runtime says of the pictures in LIST

Pictures are normalised as image folders are here. Seen with torch 2.15, torchvision 0.29, onnx 1.23, onnxscript 0.7.2
and onnxruntime 1.32.
"""
import json
import os
import sys
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")


class Plain(nn.Module):
    """Convolutions with norms, poolings, dropout."""

    def __init__(self, num_classes=5, side=16):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(6, 8, (1, 3), padding=(0, 1), bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.AvgPool2d(2))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(8 * (side // 4) ** 2, num_classes))

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        same = x if self.downsample is None else self.downsample(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + same)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(Block(3, 6, 1), Block(6, 6, 1))
        self.layer2 = nn.Sequential(Block(6, 8, 2))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.avgpool(self.layer2(self.layer1(x))).flatten(1))


class Squeeze(nn.Module):
    """Squeeze and excite, in the two ways that people write it; depthwise; swishes; a branch."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.act = nn.SiLU()
        self.fc1 = nn.Linear(8, 4)
        self.fc2 = nn.Linear(4, 8)
        self.dw = nn.Conv2d(8, 8, 3, stride=2, groups=8, padding=1)
        self.hs = nn.Hardswish()
        self.gate = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Hardsigmoid())
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.act(self.bn(self.conv(x)))
        b, c, _, _ = x.shape
        y = torch.sigmoid(self.fc2(torch.relu(self.fc1(x.mean((2, 3)))))).view(b, c, 1, 1)
        x = self.hs(self.dw(x * y.expand_as(x)))
        x = torch.cat([x, self.gate(nn.functional.adaptive_avg_pool2d(x, 1)) * x], 1)
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Attentive(nn.Module):
    """Softmax gates, sharp ones: over channels at each place, and of one value per channel."""

    def __init__(self, num_classes=5, side=16):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.scores = nn.Conv2d(8, 8, 1)
        self.fc = nn.Linear(8, 8)
        self.head = nn.Linear(8 * (side // 4) ** 2, num_classes)
        with torch.no_grad():
            for layer, factor in ((self.scores, 4), (self.fc, 8), (self.head, 20)):
                layer.weight *= factor

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        x = x * torch.softmax(self.scores(x), 1)
        y = torch.softmax(self.fc(x.mean((2, 3))), -1)
        return self.head(nn.functional.max_pool2d(x * y[:, :, None, None], 4).flatten(1))


class Padded(nn.Module):
    """Even kernels whose results are as large as their inputs: padding differs by side."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 4, padding="same", bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, (2, 3), padding="same", dilation=(3, 1))
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return self.head(nn.functional.max_pool2d(x, 4).flatten(1))


class Shuffled(nn.Module):
    """Groups of channels that take turns, as people write it."""

    def __init__(self, num_classes=5, side=16):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 1, groups=3)
        self.conv3 = nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=3)
        self.head = nn.Linear(6 * (side // 8) ** 2, num_classes)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        samples, channels, height, width = x.shape
        x = x.view(samples, 3, channels // 3, height, width).transpose(1, 2).contiguous()
        x = self.conv3(x.view(samples, -1, height, width))
        return self.head(nn.functional.max_pool2d(x, 4).flatten(1))


def seen(model):
    """Statistics of norms as after some training."""
    generator = torch.Generator().manual_seed(5)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, least in ((module.weight, 0.5), (module.bias, -0.5), (module.running_mean, -0.2), (module.running_var, 0.5)):
                with torch.no_grad():
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) + least)
    return model


def images(side):
    """What the test computes as well."""
    count = 2 * 3 * side * side
    return (((torch.arange(count) * 7919) % 1000).float() / 500 - 1).reshape(2, 3, side, side)


def classic(model, x, file):
    model.train()
    mode = torch.onnx.TrainingMode.TRAINING
    torch.onnx.export(model, (x,), file, dynamo=False, training=mode)


def default(model, x, file):
    torch.onnx.export(model.eval(), (x,), file, verbose=False)


def unoptimised(model, x, file):
    batch = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(model.eval(), (x,), file, optimize=False, dynamic_shapes=batch, external_data=False, verbose=False)


def without_places(file):
    """Without where on this machine the model was written."""
    import onnx

    model = onnx.load(file, load_external_data=False)
    for node in model.graph.node:
        kept = [entry for entry in node.metadata_props if entry.key in (
            "pkg.torch.onnx.name_scopes", "pkg.onnxscript.rewriter.rule_name")]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    del model.graph.value_info[:]
    for holder in (model, model.graph):
        del holder.metadata_props[:]
    onnx.save(model, file)


def cases(folder):
    for name, kind in (("plain", Plain), ("residual", Residual), ("squeeze", Squeeze), ("attentive", Attentive),
                       ("padded", Padded), ("shuffled", Shuffled)):
        torch.manual_seed(3)
        model, x = seen(kind()), images(16)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        os.chdir(folder)
        for way in (classic, default, unoptimised):
            model.load_state_dict(state)
            file = f"{name}-{way.__name__}"
            way(model, x, f"{file}.onnx")
            without_places(f"{file}.onnx")
            # Export in training form computes once, which moves statistics: the file has those.
            with torch.no_grad():
                answers = torch.log_softmax(model.eval()(x), 1).double()
            with open(f"{file}.json", "w") as out:
                json.dump([round(value, 6) for value in answers.flatten().tolist()], out)


def make(name, side, classes, file):
    import torchvision

    torch.manual_seed(3)
    if name == "plain":
        model = Plain(int(classes), int(side))
    elif name == "attentive":
        model = Attentive(int(classes), int(side))
    elif name == "shuffled":
        model = Shuffled(int(classes), int(side))
    else:
        model = torchvision.models.get_model(name, num_classes=int(classes))
    pictures = torch.rand(128, 3, 5, 5).repeat_interleave(int(side) // 5 + 1, 2).repeat_interleave(int(side) // 5 + 1, 3)
    pictures = (pictures[:, :, :int(side), :int(side)] - 0.45) / 0.225
    last = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))][-1]
    # Statistics and answers as after some training: they differ by picture.
    norms = [(m, m.momentum) for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm, _ in norms:
        norm.momentum = None
    model.train()
    with torch.no_grad():
        for batch in pictures.split(32):
            model(batch)
        for norm, momentum in norms:
            norm.momentum = momentum
        logits = model.eval()(pictures)
        mean, deviation = logits.mean(0), logits.std(0) + 1e-6
        last.weight /= deviation.reshape(-1, *[1] * (last.weight.dim() - 1))
        last.bias.copy_((last.bias - mean) / deviation + (1.0 if isinstance(last, nn.Conv2d) else 0.0))
    classic(model, pictures[:2], file)


def run(file, names, out):
    import numpy
    import onnxruntime
    from PIL import Image

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    mean, deviation = numpy.array([0.485, 0.456, 0.406]), numpy.array([0.229, 0.224, 0.225])
    with open(names) as listed, open(out, "w") as results:
        for line in listed:
            pixels = numpy.asarray(Image.open(line.strip()).convert("RGB")) / 255
            x = ((pixels - mean) / deviation).transpose(2, 0, 1)[None].astype("float32")
            (logits,) = session.run(None, {"image": x})
            exps = numpy.exp(logits[0].astype("float64") - logits.max())
            results.write(json.dumps((exps / exps.sum()).tolist()) + "\n")


{"cases": cases, "make": make, "run": run}[sys.argv[1]](*sys.argv[2:])
