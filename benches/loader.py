"""The other side of `kintsugi bench loader`: what a user of torchvision has today, on one thread.

usage: loader.py FOLDER, with a python that has torch, torchvision and pillow. Says "ready", then for
each line of standard input that names a pipeline loads every picture of FOLDER once and answers with
the seconds that it took.
"""

import os
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from PIL import Image
from torchvision import io, transforms
from torchvision.transforms import v2

SIZE = 224
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

pillow = transforms.Compose([
    transforms.RandomResizedCrop(SIZE),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
    transforms.Normalize(MEAN, DEVIATION),
])
tensors = v2.Compose([
    v2.RandomResizedCrop(SIZE, antialias=True),
    v2.RandomHorizontalFlip(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize(MEAN, DEVIATION),
])


def by_pillow(path):
    with Image.open(path) as image:
        return pillow(image.convert("RGB"))


def by_torchvision_io(path):
    data = io.read_file(str(path))
    return tensors(io.decode_jpeg(data, mode=io.ImageReadMode.RGB))


PIPELINES = {"pillow": by_pillow, "torchvision.io": by_torchvision_io}


def main():
    torch.set_num_threads(1)
    paths = sorted(Path(sys.argv[1]).rglob("*.jpg"))
    print("ready", flush=True)
    for line in sys.stdin:
        load = PIPELINES[line.strip()]
        begun = time.perf_counter()
        for path in paths:
            assert load(path).shape == (3, SIZE, SIZE)
        print(time.perf_counter() - begun, flush=True)


main()
