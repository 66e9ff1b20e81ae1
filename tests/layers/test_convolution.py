"""Short convolutions run as matrix products where torch is slow, and give the same values."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernel_checks import on_gpu
from s1_mini.layers import convolution


@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize("steps", [1, 20, 400])
def test_a_convolution_is_torchs(steps: int, dilation: int) -> None:
    x, weight, bias = torch.randn(1, 64, steps + 6 * dilation), torch.randn(48, 64, 7) / 20, torch.randn(48)
    with torch.inference_mode():
        ours = convolution.conv1d(x, weight, bias, stride=1, dilation=dilation, groups=1)

    torch.testing.assert_close(ours, F.conv1d(x, weight, bias, dilation=dilation), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("stride", "taps"), [(2, 2), (5, 10), (4, 12)])
@pytest.mark.parametrize("steps", [1, 5, 100])
def test_a_transposed_convolution_is_torchs(steps: int, stride: int, taps: int) -> None:
    x, weight, bias = torch.randn(1, 64, steps), torch.randn(64, 32, taps) / 10, torch.randn(32)
    with torch.inference_mode():
        ours = convolution.conv_transpose1d(x, weight, bias, stride=stride)

    torch.testing.assert_close(ours, F.conv_transpose1d(x, weight, bias, stride=stride), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("taps", [1, 7])
def test_a_product_for_each_tap_equals_torchs_convolution(taps: int, dilation: int) -> None:
    x, weight, bias = torch.randn(5, 64, 60), torch.randn(48, 64, taps) / 20, torch.randn(48)

    ours = convolution.conv_by_taps(x, weight, bias, dilation)

    torch.testing.assert_close(ours, F.conv1d(x, weight, bias, dilation=dilation), atol=1e-5, rtol=0)


@on_gpu
def test_on_a_gpu_short_rows_of_float32_are_products_and_give_what_float64_gives() -> None:
    x, weight, bias = torch.randn(64, 128, 81), torch.randn(512, 128, 7) / 30, torch.randn(512)
    with torch.inference_mode():
        ours = convolution.conv1d(x.cuda(), weight.cuda(), bias.cuda(), stride=1, dilation=1, groups=1)

    expected = F.conv1d(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(ours.cpu().double(), expected, atol=1e-5, rtol=0)


def test_with_gradients_or_several_rows_it_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(convolution, "_conv_as_product")
    weight = torch.randn(8, 8, 3)
    convolution.conv1d(torch.randn(1, 8, 9), weight, torch.zeros(8), stride=1, dilation=2, groups=1)
    with torch.inference_mode():
        convolution.conv1d(torch.randn(2, 8, 9), weight, torch.zeros(8), stride=1, dilation=2, groups=1)
