"""The corpus: which fault is planted in which architecture, and the models of each plant."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx
from plants import arithmetic, images, layouts, sequences
from plants.net import Fault, Net

HALVES = ("tune", "held")
"""Analyses may be tuned on the first; the architectures of the second are not looked at meanwhile."""

FAULTS = arithmetic.FAULTS | layouts.FAULTS

ARCHITECTURES = {
    write.__name__: write
    for write in (
        images.residual, images.mobile, images.inception, images.unet, images.convnext, images.mixer, images.stereo,
        sequences.encoder, sequences.recurrent,
    )
}  # fmt: skip

_LIST = Path(__file__).with_name("plants.csv")


@dataclass(frozen=True)
class Plant:
    """A fault in an architecture.

    Attributes:
        fault: Name in ``FAULTS``.
        architecture: Name in ``ARCHITECTURES``.
        half: One of ``HALVES``.
        sites: At how many places it is planted at most.
    """

    fault: str
    architecture: str
    half: str
    sites: int

    @property
    def name(self) -> str:
        """Name of the plant and of its models' files."""
        return f"{self.architecture}-{self.fault}"

    @property
    def what(self) -> Fault:
        """The fault itself."""
        return FAULTS[self.fault]

    def model(self, *, faulty: bool) -> tuple[onnx.ModelProto, tuple[str, ...]]:
        """Build the faulty model with the names of the planted layers, or the clean twin with its layers there."""
        net = Net(self.architecture, self.name, self.what, faulty=faulty, sites=self.sites)
        ARCHITECTURES[self.architecture](net)
        return net.model(), tuple(net.planted)


@cache
def plants() -> tuple[Plant, ...]:
    """All of ``plants.csv``."""
    with _LIST.open() as file:
        return tuple(
            Plant(row["fault"], row["architecture"], row["half"], int(row["sites"])) for row in csv.DictReader(file)
        )


def write(chosen: Sequence[Plant], folder: Path) -> dict[tuple[str, str], tuple[str, ...]]:
    """Write the models of some plants into ``faulty/`` and ``clean/``.

    Returns:
        The names of the planted layers and of their clean counterparts, by the plant's name and the side.
    """
    layers = {}
    for side in ("faulty", "clean"):
        (folder / side).mkdir(parents=True, exist_ok=True)
        for plant in chosen:
            model, planted = plant.model(faulty=side == "faulty")
            onnx.save(model, folder / side / f"{plant.name}.onnx")
            layers[plant.name, side] = planted
    return layers
