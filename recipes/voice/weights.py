"""Load the teacher's weights from its eight-bit ONNX graph into the modules of the package `kokoro`.

The name of every quantized node of the graph is the path of a module, which identifies the parameter; the inputs of the
node are the parameter's values. Float initializers have the name of their parameter.
"""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Floats = NDArray[np.float32]

# The published sizes of Kokoro-82M. Loading fails if a weight in the graph has another number of values. Sizes that no
# weight depends on, such as heads, strides and dilations, are not checked.
STYLE, HIDDEN = 128, 512
SIZES: dict[str, Any] = {
    "dim_in": HIDDEN,
    "style_dim": STYLE,
    "n_token": 178,
    "n_layer": 3,
    "max_dur": 50,
    "dropout": 0.2,
    "hidden_dim": HIDDEN,
    "n_mels": 80,
    "text_encoder_kernel_size": 5,
    "plbert": {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 2048,
        "max_position_embeddings": 512,
        "num_hidden_layers": 12,
    },
    "istftnet": {
        "upsample_kernel_sizes": [20, 12],
        "upsample_rates": [10, 6],
        "gen_istft_n_fft": 20,
        "gen_istft_hop_size": 5,
        "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5]] * 3,
        "upsample_initial_channel": 512,
    },
}
# Parameters that the graph leaves out because they are at their defaults or never used.
_DEFAULTS = re.compile(r"\.norm\.(weight|bias)$|pooler|position_ids|token_type_ids")
_PREDICTOR = re.compile(r"^(F0|N|F0_proj|N_proj|shared|lstm|duration_proj)(\.|$)")
_NUMBERED = re.compile(r"(query|key|value|dense|ffn|ffn_output|attention)_\d+\b")  # layers that share one matrix


def read_graph(path: Path) -> dict[str, Floats]:
    """Return every weight of the graph as float32 under the name it has in the torch model, weight norm folded."""
    import onnx  # only this reads ONNX

    graph = onnx.load(str(path)).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    named: dict[str, Floats] = {}
    for name, array in arrays.items():
        if name.startswith(("encoder.", "decoder.")) and array.dtype == np.float32 and not name.endswith("_scale"):
            named[name.split(".", 1)[1]] = array  # the exporter has added the first word
    dequantised = {node.input[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    for node in graph.node:
        named.update(_weights_of(node, arrays, dequantised))
    return named


def _weights_of(node: Any, arrays: dict[str, Any], dequantised: dict[str, Any]) -> dict[str, Floats]:
    path, inputs = _NUMBERED.sub(r"\1", _module_path(node.name)), list(node.input)
    kind = node.op_type
    if kind == "DynamicQuantizeLSTM":
        return dict(_lstm(path, [arrays.get(name) for name in inputs]))
    found = None
    if kind == "Gather" and node.name.endswith("Gather_quant"):
        found = _dequantise(arrays, inputs[0], dequantised[node.output[0]].input[2])
    elif kind == "ConvInteger":
        found = _dequantise(arrays, inputs[1], inputs[3])
    elif kind == "MatMulInteger" and inputs[1] in arrays:
        found = _dequantise(arrays, inputs[1], inputs[3]).T
    elif kind in {"Conv", "ConvTranspose"} and "/istft/" not in node.name:
        found = arrays[inputs[1]]
    elif kind == "MatMul" and inputs[1] in arrays:
        found = arrays[inputs[1]].T
    name = f"{path}.linear_layer.weight" if path.endswith("duration_proj") else f"{path}.weight"
    return {} if found is None else {name: found}


def _dequantise(arrays: dict[str, Any], name: str, zero_point: str) -> Floats:
    stem = name.removesuffix("_quantized")
    whole = arrays[stem + "_quantized"].astype(np.float32)
    scaled: Floats = (whole - arrays[zero_point].astype(np.float32)) * arrays[stem + "_scale"]
    return scaled


def _module_path(node: str) -> str:
    """Name the module of a node: `/encoder/F0.0/norm1/fc/Gemm_MatMul_quant` is `predictor.F0.0.norm1.fc`."""
    words = node.strip("/").split("/")[:-1]
    in_decoder = node.startswith("/decoder/")
    words = words[2:] if words[:2] == ["decoder", "decoder"] else words[1:]
    kept: list[str] = ["decoder"] if in_decoder else []
    for word in words:
        if kept and (word == kept[-1] or word.startswith(kept[-1] + ".")):
            kept[-1] = word  # `cnn.0/cnn.0.0` repeats its parent
        else:
            kept.append(word)
    return _PREDICTOR.sub(r"predictor.\1\2", ".".join(kept))


def _lstm(path: str, inputs: list[Any]) -> list[tuple[str, Floats]]:
    """Return both directions of an LSTM. The order of the gates is i o f c in ONNX, and i f c o in torch."""
    named = []
    for direction, tail in enumerate(("", "_reverse")):
        for kind, (weight, scale, zero) in {"ih": (1, 8, 9), "hh": (2, 10, 11)}.items():
            scales, zeros = (np.atleast_1d(inputs[i].astype(np.float32))[direction] for i in (scale, zero))
            named.append((f"weight_{kind}", ((inputs[weight][direction].astype(np.float32) - zeros) * scales).T, tail))
        for kind, bias in zip(("ih", "hh"), np.split(inputs[3][direction], 2), strict=True):
            named.append((f"bias_{kind}", bias, tail))
    return [(f"{path}.{name}_l0{tail}", _reordered(array)) for name, array, tail in named]


def _reordered(gates: Floats) -> Floats:
    first, output, forget, cell = np.split(gates, 4)
    return np.concatenate([first, forget, cell, output])


def import_without_phonemes() -> None:
    """Stub misaki, which kokoro's pipeline imports and nothing here uses."""
    if "misaki" not in sys.modules:
        package: Any = types.ModuleType("misaki")
        package.en, package.espeak = types.ModuleType("misaki.en"), types.ModuleType("misaki.espeak")
        package.en.MToken = object
        sys.modules.update({"misaki": package, "misaki.en": package.en, "misaki.espeak": package.espeak})


def load_teacher(model: Path, vocabulary: Path) -> tuple[nn.ModuleDict, dict[str, int]]:
    """Build the teacher's five modules in float32 on the CPU, weight norm folded, and read its phonemes' numbers.

    Raises `ValueError` if the graph lacks a weight.
    """
    import_without_phonemes()
    from kokoro.istftnet import Decoder
    from kokoro.modules import CustomAlbert, ProsodyPredictor, TextEncoder
    from transformers import AlbertConfig

    s = SIZES
    modules = nn.ModuleDict(
        {
            "bert": CustomAlbert(AlbertConfig(vocab_size=s["n_token"], **s["plbert"])),
            "bert_encoder": nn.Linear(s["plbert"]["hidden_size"], HIDDEN),
            "predictor": ProsodyPredictor(STYLE, HIDDEN, s["n_layer"], s["max_dur"], s["dropout"]),
            "text_encoder": TextEncoder(HIDDEN, s["text_encoder_kernel_size"], s["n_layer"], s["n_token"]),
            "decoder": Decoder(HIDDEN, STYLE, s["n_mels"], **s["istftnet"]),
        }
    )
    for module in modules.modules():
        if hasattr(module, "weight_g"):
            nn.utils.remove_weight_norm(module)
    found = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in read_graph(model).items()}
    for name, parameter in modules.state_dict().items():
        if name in found:
            parameter.copy_(found[name].reshape(parameter.shape))
        elif not _DEFAULTS.search(name):
            raise ValueError(f"{model.name} has no weight for {name}")
    numbers: dict[str, int] = json.loads(vocabulary.read_text(encoding="utf-8"))["vocab"]
    return modules.eval().requires_grad_(False), numbers
