"""4- or 8-bit weights by bitsandbytes, with computation in the dtype of the model.

Two paths of the library are disabled, because they would make sampler and trainer different models:

- 4 bits on a CPU with bf16 instructions: an eval-mode forward without gradients repacks the weights in place for a
  bf16 kernel without backward; afterwards no gradient passes that layer (widths off a multiple of 64 crash).
- 8 bits in eval mode: activations are also rounded to 8 bits, in float16; in training mode on a CPU they are not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from rlvr.errors import UserError, install

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def settings_for(bits: Literal[4, 8], dtype: torch.dtype) -> Any:
    """transformers' `BitsAndBytesConfig`: nf4 (arXiv:2305.14314) or int8 by rows, without outlier columns.

    Raises UserError if bitsandbytes is not installed.
    """
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"model.load_in_4bit and model.load_in_8bit need bitsandbytes: {install('quantization')}"
        ) from error
    from transformers import BitsAndBytesConfig

    if bits == 4:
        return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    # a threshold finds outlier columns over the whole batch: a row's result would depend on its neighbors
    return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)


def make_exact(model: PreTrainedModel) -> None:
    """Make every quantized layer compute the same with and without gradients, alone and in a batch."""
    from bitsandbytes.nn.modules import Linear4bit, Linear8bitLt

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
        elif isinstance(module, Linear8bitLt):
            module.forward = partial(_dequantized_forward, module)


def _dequantized_forward(layer: Any, x: Tensor) -> Tensor:
    """The product with dequantized weights; backward dequantizes again instead of keeping them."""
    from bitsandbytes.autograd._functions import MatMul8bitFp

    if layer.weight.CB is not None:
        layer.init_8bit_state()
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    output = MatMul8bitFp.apply(x, layer.weight, None, bias, layer.state)
    assert isinstance(output, Tensor)
    return output


def dequantized(model: PreTrainedModel) -> PreTrainedModel:
    """The same model in float32 on the CPU.

    Converts layer by layer: transformers' `dequantize` keeps all layers on the GPU, which may only fit the 4-bit
    weights.
    """
    from bitsandbytes.nn.modules import Linear4bit, Linear8bitLt
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight

    for name, layer in list(model.named_modules()):
        if isinstance(layer, Linear4bit | Linear8bitLt):
            plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
            packed: Any = layer.weight
            numbers = dequantize_bnb_weight(packed, getattr(layer, "state", None))
            plain.weight = nn.Parameter(numbers.float().cpu())
            if layer.bias is not None:
                plain.bias = nn.Parameter(layer.bias.data.float().cpu())
            model.set_submodule(name, plain)
    quantizer: Any = model.hf_quantizer
    quantizer.remove_quantization_config(model)
    model.config.dtype = torch.float32
    whole: Any = model.float()
    return whole.to("cpu")


def num_weights(parameter: nn.Parameter) -> int:
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(torch.Size(state.shape).numel())


def is_quantized(parameter: nn.Parameter) -> bool:
    return type(parameter).__module__.startswith("bitsandbytes")
