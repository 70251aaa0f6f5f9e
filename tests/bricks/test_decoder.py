"""Which inputs of a decoder are tokens, positions, mask and cache: by their names and by their use."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from decoders import HEADS, POSITIONS, SIZE, VOCABULARY, built, merged, one_file
from dlbricks.bricks.decoder import Decoder, read_decoder
from dlbricks.errors import BrokenModel, UsageError
from dlbricks.models.control_flow import CourseChoice
from onnx import TensorProto, helper, numpy_helper

Read = Callable[..., Decoder]
STANDARD = {"input_ids": "tokens", "attention_mask": "mask", "position_ids": "positions"}
CACHE = {f"past_key_values.0.{part}": "cache" for part in ("key", "value")}
SIZES = {"batch_size": 2, "sequence_length": 3, "past_sequence_length": 5}


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def reading(model: onnx.ModelProto, **how: Mapping[str, object]) -> Decoder:
        path = tmp_path / "decoder.onnx"
        onnx.save(model, path)
        return read_decoder(path, "decoder", **how)

    return reading


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with names that tell nothing."""
    names = {value.name: f"x{number}" for number, value in enumerate(model.graph.input)}
    for value in model.graph.input:
        value.name = names[value.name]
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return model


def roles(decoder: Decoder) -> dict[str, str]:
    return {entry.name: str(entry.role) for entry in decoder.inputs}


def input_named(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    return next(value for value in model.graph.input if value.name == name)


@pytest.mark.parametrize(
    ("model", "found", "sizes"),
    [
        (one_file(), STANDARD | CACHE, SIZES | {"past_sequence_length + sequence_length": 8}),
        (one_file(sequence="s70", past="s15", total="s15 + s70", batch="s10"), STANDARD | CACHE,
         {"s10": 2, "s70": 3, "s15": 5, "s15 + s70": 8}),
        (one_file(sequence="?", past="?", total="?", batch="?"), STANDARD | CACHE,
         {"input_ids[0]": 2, "input_ids[1]": 3, "attention_mask[0]": 2, "attention_mask[1]": 8, "position_ids[0]": 2,
          "position_ids[1]": 3, "past_key_values.0.key[0]": 2, "past_key_values.0.key[2]": 5,
          "past_key_values.0.value[0]": 2, "past_key_values.0.value[2]": 5}),
        (merged(), STANDARD | CACHE | {"use_cache_branch": "branch"}, SIZES | {"total": 8}),
        (built(), {"input_ids": "tokens", "attention_mask": "mask"} | CACHE, SIZES | {"total_sequence_length": 8}),
        (built(bits=4), {"input_ids": "tokens", "attention_mask": "mask"} | CACHE,
         SIZES | {"total_sequence_length": 8}),
        (built(bits=4, packed=True), {"input_ids": "tokens", "attention_mask": "mask"} | CACHE,
         SIZES | {"total_sequence_length": 8, "kv_cache_dim": SIZE}),
        (built(shared=True), {"input_ids": "tokens", "attention_mask": "mask"} | CACHE,
         SIZES | {"total_sequence_length": 8, "past_sequence_length": 8}),
    ],
    ids=["one file", "symbols", "no names", "merged", "builder", "four bits", "size of a head", "one buffer"],
)  # fmt: skip
def test_files_are_understood_without_options(read: Read, model, found, sizes) -> None:
    decoder = read(model)

    assert roles(decoder) == found
    assert decoder.dims(batch=2, new=3, past=5) == sizes
    assert (decoder.logits, decoder.vocabulary, decoder.positions) == ("logits", VOCABULARY, POSITIONS)
    assert {entry.present for entry in decoder.caches} == {"present.0.key", "present.0.value"}
    assert all(name in decoder.described() for name in found)


@pytest.mark.parametrize("model", [one_file(2), built(2), built(2, bits=4)], ids=["one file", "builder", "four bits"])
def test_the_use_tells_what_names_do_not(read: Read, model: onnx.ModelProto) -> None:
    named = read(model)

    assert [*roles(read(renamed(model))).values()] == [*roles(named).values()]


def test_a_buffer_is_shared_only_if_the_operator_extends_it_in_place(read: Read) -> None:
    assert read(built(shared=True)).shared
    assert not read(built()).shared
    concatenated = one_file()
    for value in concatenated.graph.output[1:]:
        value.type.tensor_type.shape.dim[2].dim_param = "past_sequence_length"
    assert not read(concatenated).shared


def settings(name: str = "decoder.onnx", *, kept: object = True) -> str:
    return json.dumps({"model": {"decoder": {"filename": name}}, "search": {"past_present_share_buffer": kept}})


@pytest.mark.parametrize(
    ("model", "beside", "shared"),
    [(built(), settings(), True), (one_file(), settings(), False), (built(), settings(kept=False), False),
     (built(), settings("other.onnx"), False), (built(), "[]", False), (built(), '{"model": []}', False)],
    ids=["said", "not in place", "denied", "another file", "a list", "others"],
)  # fmt: skip
def test_the_settings_beside_a_file_tell_whether_its_loop_keeps_one_buffer(tmp_path, read: Read, model, beside, shared):
    (tmp_path / "genai_config.json").write_text(beside)

    assert read(model).shared is shared


@pytest.mark.parametrize("beside", ["{", "[" * 100_000, '{"model"' + " " * (1 << 21) + ": 1}"])
def test_settings_that_cannot_be_read_are_named(tmp_path, read: Read, beside):
    (tmp_path / "genai_config.json").write_text(beside)

    with pytest.raises(BrokenModel, match=r"genai_config\.json cannot be read"):
        read(built())


def test_a_merged_file_has_a_branch_for_a_prompt(read: Read) -> None:
    decoder = read(merged())

    assert decoder.control(0) == (CourseChoice("optimum::if", "else"),)
    assert decoder.control(7) == (CourseChoice("optimum::if", "then"),)
    assert read(one_file()).control(0) == ()


def test_the_cache_of_some_positions_has_so_many_bytes(read: Read) -> None:
    decoder, shared = read(one_file(3)), read(built(shared=True))

    assert decoder.cache_bytes(batch=2, positions=10) == 3 * 2 * 2 * HEADS * 10 * SIZE * 4
    assert (decoder.buffer(7, 2), shared.buffer(7, 2)) == (7, 9)
    assert decoder.weight_bytes > 3 * 4 * HEADS * SIZE * HEADS * SIZE * 4


def test_numbers_of_positions_may_be_inputs(read: Read) -> None:
    model = built()
    kept = [node for node in model.graph.node if not {"attention_mask", "v1", "v2", "v4"} & set(node.input)]
    (attention,) = (node for node in kept if node.op_type == "GroupQueryAttention")
    last, total = attention.input[5:7]
    del model.graph.node[:]
    model.graph.node.extend(node for node in kept if not {last, total} & set(node.output))
    model.graph.input.remove(input_named(model, "attention_mask"))
    model.graph.input.append(helper.make_tensor_value_info(last, TensorProto.INT32, ["batch_size"]))
    model.graph.input.append(helper.make_tensor_value_info(total, TensorProto.INT32, []))

    found = roles(read(model))

    assert {found[last], found[total]} == {"last", "total"}


def test_an_input_that_nothing_tells_is_named_with_the_option(read: Read) -> None:
    model = one_file()
    model.graph.input.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, ["batch_size", 4]))
    model.graph.node.append(helper.make_node("Identity", ["extra"], ["unread"]))
    names = [value.name for value in model.graph.input]

    with pytest.raises(
        UsageError, match=r"input 'extra' is not understood: neither its name nor its use.*--input 'extr"
    ):
        read(model)
    with pytest.raises(UsageError, match="--input extra=none: no role; there are tokens, positions"):
        read(model, roles={"extra": "none"})
    with pytest.raises(UsageError, match=f"--input other: decoder has no such input; there are {', '.join(names)}"):
        read(model, roles={"other": "mask"})


def test_a_name_that_the_use_contradicts_is_no_answer(read: Read) -> None:
    model = one_file()
    names = {"input_ids": "attention_mask", "attention_mask": "input_ids"}
    for value in model.graph.input:
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]

    with pytest.raises(UsageError, match="'attention_mask' is not understood: it is named as mask, and used as tokens"):
        read(model)
    told = {"attention_mask": "tokens", "input_ids": "mask"}
    assert roles(read(model, roles=told)) | told == roles(read(model, roles=told))


def test_a_model_that_is_no_decoder_is_refused(
    read: Read, write_branches: Callable[[Path], Path], tmp_path: Path
) -> None:
    model = one_file()
    integers = onnx.ModelProto()
    integers.CopyFrom(model)
    for value in integers.graph.output:
        if value.name == "logits":
            value.name = "hidden"
            value.type.tensor_type.shape.dim.add(dim_value=1)
    next(node for node in integers.graph.node if node.output[0] == "logits").output[0] = "hidden"

    with pytest.raises(UsageError, match=r"is not a decoder: none of its inputs .x. is a cache that an output extends"):
        read_decoder(write_branches(tmp_path / "b.onnx"), "branches")
    with pytest.raises(UsageError, match="is not a decoder of text: none of its outputs is the scores of tokens"):
        read(integers)


def test_an_axis_that_nothing_tells_is_named_with_the_option(read: Read) -> None:
    model = one_file()
    for value in model.graph.input:
        if value.name.startswith("past"):
            value.type.tensor_type.shape.dim[1].dim_param = "heads"

    with pytest.raises(
        UsageError, match=r"'past_key_values.0.key' has one free axis too many.*axis 1.*--dim 'heads=N'"
    ):
        read(model)
    assert read(model, dims={"heads": HEADS}).dims(batch=1, new=1, past=4)["heads"] == HEADS
    with pytest.raises(UsageError, match="--dim nosuch: decoder has no such dimension; there are: batch_size"):
        read(model, dims={"heads": HEADS, "nosuch": 1})
    with pytest.raises(UsageError, match="--dim batch_size: this dimension of decoder counts sequences or positions"):
        read(model, dims={"heads": HEADS, "batch_size": 1})


def test_a_dimension_counts_one_thing(read: Read) -> None:
    with pytest.raises(UsageError, match="dimension 'sequence_length' is 3 at axis 1 of input 'input_ids', and 8"):
        read(one_file(total="sequence_length"))


@pytest.mark.parametrize(
    ("name", "axis", "size", "said"),
    [
        ("input_ids", 1, 1, "axis 1 of input 'input_ids' is fixed at 1, and 3 are needed"),
        ("past_key_values.0.key", 2, 7, "'past_key_values.0.key' is not understood: a cache of fixed length .7"),
    ],
)
def test_a_fixed_length_is_refused(read: Read, name: str, axis: int, size: int, said: str) -> None:
    model = one_file()
    input_named(model, name).type.tensor_type.shape.dim[axis].dim_value = size

    with pytest.raises(UsageError, match=said):
        read(model)


def test_blocks_that_do_not_divide_are_named(read: Read) -> None:
    model = built(bits=4)
    short = next(tensor for tensor in model.graph.initializer if tensor.name == "w_query0_q")
    short.CopyFrom(numpy_helper.from_array(np.zeros((32, 1, 8), np.uint8), short.name))

    with pytest.raises(BrokenModel, match=r"weights 'w_query0_q' of MatMulNBits.*32 columns of 32 in blocks of 16"):
        read(model)
