"""Bricks in the stream of a device. The CPU stands in for a GPU: the same code times, captures and holds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from computing import settings as settings_of
from dlbricks.bricks.reference import CHAIN_NODES
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.torch.backend import TorchBackend
from dlbricks.generator.device.host import HostDevice
from dlbricks.generator.network.network import synthetic_network
from dlbricks.generator.network.packed import PackedBrick
from dlbricks.generator.worker.execution.pack import StreamedPack, _clock, load_pack
from dlbricks.models.skeleton import mark_weight
from onnx import TensorProto, helper

VISITS = 4


class Accelerator(HostDevice):
    """A device that is not the caller: it can be held, and what it is given can be captured."""

    name = "accelerator"

    def __init__(self) -> None:
        super().__init__()
        self.held: list[float] = []
        self.recorded = 0
        self.late = 0

    def hold(self, ns: float):
        self.held.append(ns)
        return self.over

    def over(self) -> bool:
        self.late -= 1
        return self.late >= 0

    def record(self, event: list[int]) -> None:
        self.recorded += 1
        super().record(event)


class Torch(TorchBackend):
    """PyTorch on the CPU, as if that were a device of its own."""

    def __init__(self, *, captures: bool) -> None:
        self.place = Accelerator()
        self.captures = captures

    def device(self, settings: Settings) -> Accelerator:
        return self.place

    def captured(self, run, settings):
        return partial(run) if self.captures else run


@pytest.fixture(scope="module")
def settings() -> Settings:
    return settings_of(TorchBackend())


def brick(op_type: str, shape: tuple[int, ...] = (1, 64, 32, 32), **attributes: object) -> PackedBrick:
    names = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    node = helper.make_node(op_type, ["x"], ["y"], **attributes)
    graph = helper.make_graph([node], "brick", names[:1], names[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return PackedBrick(replace(synthetic_network(model), as_is=True))


def read(pack: StreamedPack) -> dict:
    try:
        for visit in range(VISITS):
            pack.run(visit=visit)
            pack.run(visit=visit)
        return {one.id: one for one in pack.read(None).times}
    finally:
        pack.close()


def test_one_launch_reports_the_device_alone_and_a_view_takes_next_to_nothing(settings):
    backend = Torch(captures=True)
    bricks = {"exp": brick("Exp"), "same": brick("Identity"), "small": brick("Exp", (1, 4))}

    times = read(StreamedPack(bricks | {"small": replace(bricks["small"], copies=2)}, backend, settings))

    assert times.keys() == bricks.keys()
    assert all(len(one.whole_ns) == VISITS and one.host_ns == () for one in times.values())
    medians = {name: np.median(one.whole_ns) for name, one in times.items()}
    assert medians["same"] < medians["exp"]
    assert medians["exp"] > medians["small"] >= 0
    assert backend.place.held == []


def test_a_device_is_held_while_bricks_are_enqueued_and_launches_are_reported_beside(settings):
    backend = Torch(captures=False)
    bricks = {str(number): brick("Exp", (1, 64 + number)) for number in range(30)}

    times = read(StreamedPack(bricks, backend, settings))

    parts = -(-(30 + 2 * 2) // 12)
    assert len(backend.place.held) == parts * 2 * VISITS
    assert min(backend.place.held) > 0
    assert all(len(one.host_ns) == len(one.whole_ns) == VISITS for one in times.values())


def test_what_a_device_did_not_wait_for_is_enqueued_again_after_a_longer_wait(settings):
    backend = Torch(captures=False)
    backend.place.late = 2
    pack = StreamedPack({"exp": brick("Exp")}, backend, settings)

    pack.run(visit=0)
    pack.close()

    assert len(backend.place.held) == 3


@pytest.mark.parametrize(("number", "expected"), [(1, [0, -1, -2]), (10, [0, -1, 1, 2, 3, 4, 5, 6, 7, 8, -2, 9])])
def test_what_a_call_costs_is_measured_behind_bricks(settings, number, expected):
    """A call right after another one of the same network, or before anything ran, would cost another time."""
    bricks = {str(place): brick("Exp", (1, 8 + place)) for place in range(number)}
    pack = StreamedPack(bricks, Torch(captures=False), settings)

    try:
        assert [step.owner for step in pack._steps] == expected
    finally:
        pack.close()


@pytest.mark.parametrize("backend", [TorchBackend(), Torch(captures=False)], ids=["processor", "device"])
def test_on_a_processor_no_call_that_is_measured_is_of_a_network_that_ran_before(settings, backend):
    bricks = {str(place): brick("Exp", (1, 8 + place)) for place in range(40)}
    pack = StreamedPack(bricks, backend, settings)

    try:
        single = [id(step.executable) for step in pack._steps if step.owner == -1]
        assert len({*single}) == (3 if type(backend) is TorchBackend else 1)
        assert len(single) == 3
    finally:
        pack.close()


def test_copies_have_weights_of_their_own(settings):
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    weight = mark_weight(helper.make_tensor_value_info("w", TensorProto.FLOAT, (8, 4, 3, 3)))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, n, 8, 8)) for name, n in (("x", 4), ("y", 8))]
    graph = helper.make_graph([conv], "brick", [values[0], weight], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    network = replace(synthetic_network(model), as_is=True)
    backend = Torch(captures=False)
    seen = []
    backend.prepare_streamed = lambda network, settings: (  # type: ignore[method-assign]
        seen.append([array.ctypes.data for array in network.weights.values()])
        or TorchBackend.prepare_streamed(backend, network, settings)
    )

    StreamedPack({"conv": PackedBrick(network, copies=3)}, backend, settings).close()

    places = [place for places in seen for place in places]
    assert len({*places}) == len(places) >= 3


def test_what_a_brick_reads_on_the_cpu_is_its_own(settings):
    """Values decide times there: of a negative number a root is no number, which is slow."""
    names = ("Exp", "Sqrt", "Log")
    pack = StreamedPack({name: brick(name, (64, 64)) for name in names}, TorchBackend(), settings)

    inputs = [step.executable._inputs[0] for step in pack._steps if step.owner >= 0]

    assert len({tensor.data_ptr() for tensor in inputs}) == len(names)
    assert all(float(tensor.min()) > 0 for tensor in inputs[1:])
    pack.close()


def test_what_cannot_be_loaded_costs_only_itself(settings):
    bricks = {"exp": brick("Exp"), "odd": brick("Frobnicate")}

    outcome = load_pack(bricks, TorchBackend(), settings)
    none = load_pack({"odd": brick("Frobnicate")}, TorchBackend(), settings)

    loaded = outcome.pack
    assert loaded is not None
    loaded.run(visit=0)
    (times,) = loaded.read(None).times
    assert (times.id, times.host_ns) == ("exp", ())  # on the CPU the caller is the device
    assert min(times.whole_ns) > 0
    loaded.close()
    assert (none.pack, outcome.alone) == (None, ())
    for found in (outcome.refused, none.refused):
        assert [*found] == ["odd"]
        assert isinstance(found["odd"], UnsupportedBrick)


def test_networks_of_a_pass_read_the_same_memory_where_inputs_are_alike(settings):
    one, other, small = (TorchBackend().prepare_streamed(brick("Exp", shape).network, settings) for shape in
                         [(32, 64), (32, 64), (2, 3)])  # fmt: skip
    known: dict = {}
    tiny = small._inputs[0]
    for executable in (one, other, small):
        executable.share(known)

    assert one._inputs[0] is other._inputs[0]
    assert small._inputs[0] is tiny
    assert len(known) == 1


@pytest.mark.parametrize("step_ns", [32, 1000, 2000])
def test_a_clock_of_coarse_steps_biases_no_sum(step_ns):
    rng = np.random.default_rng(0)
    owners, true, clock_ns, one_ns = [], rng.uniform(2e3, 2e4, 60), 1250.0, 1600.0
    true[::8] = 0.0  # views
    for brick in range(len(true)):
        owners += [brick, *([-1] if brick % 16 == 0 else [-2] if brick % 16 == 8 else [])]
    work = [one_ns if owner == -1 else one_ns * CHAIN_NODES if owner == -2 else true[owner] for owner in owners]
    rows = []
    for _ in range(240):
        spent = (np.array(work) + clock_ns) * rng.normal(1, 0.01, len(work))
        ends = np.cumsum(spent + rng.uniform(2e3, 4e3, len(work))) + rng.uniform(0, 1e6)
        rows.append(ends // step_ns * step_ns - (ends - spent) // step_ns * step_ns)
    places = np.array(owners)

    clock = _clock(np.array(rows), places, step_ns)

    found = np.mean(rows, axis=0)[places >= 0] - clock
    assert abs(found.sum() / true.sum() - 1) < 0.01
