"""Ways to damage models, suites and databases; each is a function of a seeded generator."""

from __future__ import annotations

import json
import random
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import Message

__all__ = ["DATABASES", "MODELS", "SUITES", "damage_bytes"]

_NUMBERS = (0, 1, -1, 2, 3, 7, 127, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 40) + 1, (1 << 62), -(1 << 62))
_TEXTS = (
    "",
    "x",
    "y",
    "ai.onnx",
    "com.microsoft",
    "Conv",
    "Loop",
    "If",
    "Reshape",
    "../../x",
    "a" * 3000,
    "%s%n",
    "\x00",
    "é\u202e",
)
_OPERATORS = (
    "Conv",
    "MatMul",
    "Loop",
    "If",
    "Scan",
    "Reshape",
    "Gather",
    "Tile",
    "Expand",
    "Range",
    "ConstantOfShape",
    "Pad",
    "NoSuchThing",
    "Identity",
    "Shape",
    "Concat",
    "LSTM",
    "Einsum",
    "Resize",
)
_MOST = 1 << 20
"""Bytes that damage adds to a file at most."""


def damage_bytes(path: Path, rng: random.Random) -> None:
    """Flip, cut, repeat or put in bytes, once or a few times."""
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        at = rng.randrange(len(data))
        size = min(rng.choice((1, 2, 8, 64, 1024)), len(data) - at)
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = data[at : at + size]
            case 3:
                data[at : at + size] = rng.randbytes(size)
            case _:
                del data[at:]
    path.write_bytes(data)


# ------------------------------------------------------------------ models


def _model(change: Callable[[onnx.ModelProto, random.Random], None]) -> Callable[[Path, random.Random], None]:
    def damage(path: Path, rng: random.Random) -> None:
        model = onnx.load(path, load_external_data=False)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            change(model, rng)
        path.write_bytes(model.SerializeToString())

    return damage


def _messages(message: Message) -> list[Message]:
    found, pending = [], [message]
    while pending:
        one = pending.pop()
        found.append(one)
        for field, value in one.ListFields():
            if field.message_type is not None:
                pending += list(value) if field.is_repeated else [value]
    return found


def _field(model: onnx.ModelProto, rng: random.Random) -> None:
    """Set any field of any message to something else, or clear it."""
    message: Any = rng.choice(_messages(model))
    field = rng.choice(message.DESCRIPTOR.fields)
    if rng.random() < 0.2 or field.message_type is not None:
        if field.is_repeated and field.message_type is not None and rng.random() < 0.5:
            values = getattr(message, field.name)
            if len(values) and message.ByteSize() < _MOST:
                values.add().CopyFrom(rng.choice(list(values)))
                return
        message.ClearField(field.name)
        return
    value: Any = {
        field.CPPTYPE_STRING: lambda: (
            rng.choice(_TEXTS) if field.type != field.TYPE_BYTES else rng.randbytes(rng.choice((0, 1, 8)))
        ),
        field.CPPTYPE_FLOAT: lambda: rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e38)),
        field.CPPTYPE_DOUBLE: lambda: rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e300)),
        field.CPPTYPE_INT32: lambda: max(-(1 << 31), min((1 << 31) - 1, rng.choice(_NUMBERS))),
        field.CPPTYPE_ENUM: lambda: rng.choice(field.enum_type.values).number,
    }.get(field.cpp_type, lambda: rng.choice(_NUMBERS))()
    if field.cpp_type == field.CPPTYPE_UINT64:
        value = abs(value)
    if not field.is_repeated:
        setattr(message, field.name, value)
        return
    values = getattr(message, field.name)
    if len(values) and rng.random() < 0.7:
        values[rng.randrange(len(values))] = value
    else:
        values.extend([value] * rng.choice((1, 1, 2, 100)))


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [one for one in _messages(model) if isinstance(one, onnx.GraphProto)]


def _shape(model: onnx.ModelProto, rng: random.Random) -> None:
    """Change what the file says of shapes and types, of weights too."""
    graph = rng.choice(_graphs(model))
    values = [*graph.input, *graph.output, *graph.value_info]
    if graph.initializer and (not values or rng.random() < 0.4):
        tensor = rng.choice(list(graph.initializer))
        match rng.randrange(3):
            case 0:
                tensor.dims.append(rng.choice(_NUMBERS))
            case 1 if tensor.dims:
                tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_NUMBERS)
            case _:
                tensor.data_type = rng.randrange(30)
        return
    if not values:
        return
    kind = rng.choice(values).type.tensor_type
    match rng.randrange(5):
        case 0:
            kind.shape.dim.add(dim_value=rng.choice(_NUMBERS))
        case 1 if kind.shape.dim:
            rng.choice(list(kind.shape.dim)).dim_value = rng.choice(_NUMBERS)
        case 2 if kind.shape.dim:
            rng.choice(list(kind.shape.dim)).dim_param = rng.choice(("N", "M", "N*2", "", "N/0", "a" * 500))
        case 3:
            kind.ClearField("shape")
        case _:
            kind.elem_type = rng.randrange(30)


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    """Change, drop, retype or repeat an attribute."""
    nodes = [node for graph in _graphs(model) for node in graph.node]
    if not nodes:
        return
    node = rng.choice(nodes)
    if not node.attribute or rng.random() < 0.2:
        name = rng.choice(
            (
                "axis",
                "axes",
                "pads",
                "kernel_shape",
                "strides",
                "group",
                "value",
                "to",
                "perm",
                "body",
                "num_scan_inputs",
            )
        )
        node.attribute.add(
            name=name, type=rng.choice((1, 2, 3, 6, 7)), i=rng.choice(_NUMBERS), ints=[rng.choice(_NUMBERS)]
        )
        return
    attribute = rng.choice(list(node.attribute))
    match rng.randrange(5):
        case 0:
            node.attribute.remove(attribute)
        case 1:
            attribute.type = rng.randrange(15)
        case 2:
            node.attribute.add().CopyFrom(attribute)
        case 3 if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_NUMBERS)
        case _:
            attribute.i = rng.choice(_NUMBERS)


def _wiring(model: onnx.ModelProto, rng: random.Random) -> None:
    """Rewire, drop, repeat, move or rename operators."""
    graphs = [graph for graph in _graphs(model) if graph.node]
    if not graphs:
        return
    graph = rng.choice(graphs)
    node = rng.choice(list(graph.node))
    names = [
        "",
        "nowhere",
        *(name for one in graph.node for name in one.output),
        *(value.name for value in graph.input),
    ]
    match rng.randrange(8):
        case 0 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        case 1:
            node.input.append(rng.choice(names))
        case 2 if node.output:
            node.output[rng.randrange(len(node.output))] = rng.choice(names)
        case 3:
            graph.node.remove(node)
        case 4:
            graph.node.add().CopyFrom(node)
        case 5:
            nodes = list(graph.node)
            rng.shuffle(nodes)
            del graph.node[:]
            graph.node.extend(nodes)
        case 6:
            node.op_type = rng.choice(_OPERATORS)
        case _ if graph.output:
            rng.choice(list(graph.output)).name = rng.choice(names)
        case _:
            node.ClearField("input")


def _external(path: Path, rng: random.Random) -> None:
    """Let a weight lie in a file that it must not lie in, or at a place that is none."""
    model = onnx.load(path, load_external_data=False)
    tensors = [one for one in _messages(model) if isinstance(one, onnx.TensorProto)]
    tensor = rng.choice(tensors) if tensors else model.graph.initializer.add(name="added", data_type=1, dims=[4, 4])
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    places = (
        "../outside/secret.bin",
        "../../outside/secret.bin",
        str(path.resolve().parent.parent / "outside" / "secret.bin"),
        "/etc/passwd",
        "./../outside/secret.bin",
        "models/../../outside/secret.bin",
        "link.bin",
        "linked/secret.bin",
        "",
        ".",
        "..",
        "\x00",
        "a" * 5000,
        "weights.bin",
    )
    tensor.external_data.add(key="location", value=rng.choice(places))
    if rng.random() < 0.4:
        tensor.external_data.add(key="offset", value=str(rng.choice((*_NUMBERS, "x"))))
    if rng.random() < 0.4:
        tensor.external_data.add(key="length", value=str(rng.choice((*_NUMBERS, ""))))
    path.write_bytes(model.SerializeToString())


def _large(model: onnx.ModelProto, rng: random.Random) -> None:
    """Ask for what nobody has: values that say how much memory, or how many iterations, something takes."""
    graph = model.graph
    tensors = [
        one for one in _messages(model) if isinstance(one, onnx.TensorProto) and one.data_type == onnx.TensorProto.INT64
    ]
    if tensors and rng.random() < 0.6:
        tensor = rng.choice(tensors)
        size = max(
            1, len(onnx.numpy_helper.to_array(tensor).reshape(-1)) if tensor.raw_data or tensor.int64_data else 1
        )
        name, dims = tensor.name, list(tensor.dims)
        tensor.CopyFrom(
            onnx.helper.make_tensor(name, onnx.TensorProto.INT64, dims, [rng.choice(_NUMBERS) for _ in range(size)])
        )
        return
    shape = onnx.helper.make_tensor(
        "huge", onnx.TensorProto.INT64, [2], [rng.choice((1 << 20, 1 << 31)), rng.choice((8, 1 << 20))]
    )
    made = f"huge{rng.randrange(100)}"
    operator = rng.choice(("ConstantOfShape", "Expand", "Tile", "Range"))
    graph.node.insert(0, onnx.helper.make_node("Constant", [], [f"{made}_shape"], value=shape))
    inputs = (
        [f"{made}_shape"]
        if operator == "ConstantOfShape"
        else [graph.input[0].name if graph.input else "", f"{made}_shape"]
    )
    graph.node.insert(1, onnx.helper.make_node(operator, inputs, [made]))
    graph.output.append(onnx.helper.make_empty_tensor_value_info(made))


MODELS: dict[str, Callable[[Path, random.Random], None]] = {
    "bytes": damage_bytes,
    "fields": _model(_field),
    "shapes": _model(_shape),
    "attributes": _model(_attribute),
    "wiring": _model(_wiring),
    "external": _external,
    "sizes": _model(_large),
}


# ------------------------------------------------------------------ suites


def _manifest(path: Path, rng: random.Random) -> None:
    """Change a value somewhere in the manifest."""
    (file,) = path.glob("*.json")
    written = json.loads(file.read_text())
    places: list[tuple[Any, Any]] = []
    pending: list[Any] = [written]
    while pending:
        one = pending.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one)
        for key, value in items:
            places.append((one, key))
            if isinstance(value, dict | list):
                pending.append(value)
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(places)
        value = rng.choice(
            (None, -1, 1 << 80, 1.5, "", "../../outside/secret", "x" * 500, [], {}, [[]] * 3, True, {"a": {"b": []}})
        )
        match rng.randrange(4):
            case 0 if isinstance(holder, dict) and key in holder:
                del holder[key]
            case 1 if isinstance(holder, dict) and key in holder:
                holder[rng.choice(("../x", "", "0" * 64, "z"))] = holder.pop(key)
            case _ if isinstance(holder, dict) or key < len(holder):
                holder[key] = value
            case _:
                pass
    file.write_text(json.dumps(written))


def _manifest_bytes(path: Path, rng: random.Random) -> None:
    (file,) = path.glob("*.json")
    damage_bytes(file, rng)


def _bricks(path: Path) -> list[Path]:
    return sorted(path.rglob("*.onnx"))


def _brick(path: Path, rng: random.Random) -> None:
    MODELS[rng.choice(list(MODELS))](rng.choice(_bricks(path)), rng)


def _brick_files(path: Path, rng: random.Random) -> None:
    """Remove, rename, swap, or link a brick elsewhere."""
    brick = rng.choice(_bricks(path))
    match rng.randrange(5):
        case 0:
            brick.unlink()
        case 1:
            brick.rename(brick.with_name("0" * 64 + ".onnx"))
        case 2:
            brick.write_bytes(rng.choice(_bricks(path)).read_bytes())
        case 3:
            brick.unlink()
            brick.symlink_to(rng.choice(("../../outside/secret.bin", "/etc/passwd", "/dev/zero", ".")))
        case _:
            brick.unlink()
            brick.mkdir()


SUITES: dict[str, Callable[[Path, random.Random], None]] = {
    "manifest": _manifest,
    "manifest bytes": _manifest_bytes,
    "brick": _brick,
    "files": _brick_files,
}


# ------------------------------------------------------------------ databases


def _rows(path: Path, rng: random.Random) -> None:
    """Write something else into cells, whatever their type."""
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        for _ in range(rng.choice((1, 1, 2, 5))):
            table = rng.choice(tables)
            column = rng.choice([row[1] for row in database.execute(f'PRAGMA table_info("{table}")')])
            value = rng.choice(
                (
                    None,
                    -1,
                    0,
                    1 << 62,
                    "x",
                    "",
                    b"\x00\xff",
                    1e308,
                    "[[[]]]",
                    '{"a": 1}',
                    zlib.compress(b"[]"),
                    rng.randbytes(50),
                    "2020-99-99",
                    "../x",
                )
            )
            where = "" if rng.random() < 0.5 else f" WHERE rowid % {rng.choice((2, 3, 7))} = 0"
            try:
                database.execute(f'UPDATE "{table}" SET "{column}" = ?{where}', (value,))
            except sqlite3.Error:
                continue  # a constraint of the schema refuses it
        database.commit()


def _structure(path: Path, rng: random.Random) -> None:
    """Drop tables, columns or rows, or add what does not belong there."""
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        table = rng.choice(tables)
        statements = (
            f'DROP TABLE "{table}"',
            f'DELETE FROM "{table}" WHERE rowid % 2 = 0',
            f'DELETE FROM "{table}"',
            f'ALTER TABLE "{table}" RENAME TO other',
            f'ALTER TABLE "{table}" ADD COLUMN more TEXT',
            f'CREATE TABLE "{table}2" (a)',
            f'CREATE TRIGGER t AFTER INSERT ON "{table}" BEGIN DELETE FROM "{table}"; END',
        )
        try:
            database.execute(rng.choice(statements))
        except sqlite3.Error:
            return  # the schema refuses it
        database.commit()


def _bomb(path: Path, rng: random.Random) -> None:
    """Put in what grows a thousandfold when it is unpacked."""
    bomb = zlib.compress(b"[" + b"[]," * (rng.choice((10, 80)) << 20) + b"[]]", 9)
    with closing(sqlite3.connect(path)) as database:
        for (table,) in list(database.execute("SELECT name FROM sqlite_master WHERE type='table'")):
            for column in [
                row[1] for row in database.execute(f'PRAGMA table_info("{table}")') if "BLOB" in row[2].upper()
            ]:
                try:
                    database.execute(f'UPDATE "{table}" SET "{column}" = ?', (bomb,))
                except sqlite3.Error:
                    continue  # a constraint of the schema refuses it
        database.commit()


DATABASES: dict[str, Callable[[Path, random.Random], None]] = {
    "bytes": damage_bytes,
    "rows": _rows,
    "structure": _structure,
    "bombs": _bomb,
}
