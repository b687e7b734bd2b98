"""The U-Net of diffusion models: every image size, no example that touches another, and the layout of diffusers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from understudy.engines.dpsgd.gradients import FlatParameters, PerExampleGradients
from understudy.models.unet import UNet

WIDTHS = (8, 16)


def network(channels: int = 1, classes: int = 4, widths: tuple[int, ...] = WIDTHS, blocks: int = 1) -> UNet:
    torch.manual_seed(0)
    return UNet(channels, classes, widths, blocks)


def inputs(count: int, channels: int = 1, sides: tuple[int, int] = (8, 8), seed: int = 1) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(count, channels, *sides, generator=random)
    return images, 40 * torch.randn(count, generator=random), torch.randint(0, 4, (count,), generator=random)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sides", [(8, 8), (9, 13), (28, 28), (32, 11), (33, 64)])
@pytest.mark.parametrize("widths", [(8,), (8, 16, 8, 8)])
def test_every_size_of_images_comes_out_as_it_went_in(channels, sides, widths):
    with torch.no_grad():
        answers = network(channels, widths=widths)(*inputs(2, channels, sides))
    assert answers.shape == (2, channels, *sides)
    assert torch.isfinite(answers).all()


def test_one_class_is_enough_for_images_without_labels():
    images, times, _ = inputs(3)
    assert network(classes=1)(images, times, torch.zeros(3, dtype=torch.long)).shape == images.shape


@pytest.mark.parametrize("times", [-160.0, 0.0, 110.0])
def test_every_noise_level_of_the_sampler_gives_finite_answers(times):
    images, _, labels = inputs(2)
    assert torch.isfinite(network()(images, torch.full((2,), times), labels)).all()


def test_an_answer_follows_image_time_and_class():
    images, times, labels = inputs(3)
    plain = network()(images, times, labels)
    for changed in ((images + 1, times, labels), (images, times + 1, labels), (images, times, (labels + 1) % 4)):
        assert ((network()(*changed) - plain).abs().flatten(1).amax(dim=1) > 1e-6).all()


@pytest.mark.parametrize("sides", [(8, 8), (9, 13)])
def test_no_example_touches_another(sides):
    """What the private step asks of a network before it begins, in values and in gradients."""
    model = network(channels=3)
    engine = PerExampleGradients(model, FlatParameters(model))
    engine.check_examples_apart(inputs(4, 3, sides), inputs(4, 3, sides, seed=2))


def test_every_parameter_learns():
    model = network(channels=3, blocks=2)
    model(*inputs(40, 3)).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


# The layout of diffusers


def parameters(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    ("widths", "blocks", "channels", "classes", "theirs"),
    [((32, 64, 64), 2, 1, 11, 1_660_449), ((16, 32), 1, 3, 4, 178_339), ((8,), 1, 1, 1, 11_945)],
)
def test_it_has_the_parameters_of_unet2dmodel_without_scales_shifts_and_biases(
    widths, blocks, channels, classes, theirs
):
    """Theirs counted with diffusers 0.42: what is missing is two for each channel of a norm, and biases in blocks."""
    model = network(channels, classes, widths, blocks)
    missing = 2 * widths[0] + 2 * widths[-1]  # the norms before the output and in the attention
    for name, weight in model.named_parameters():
        if name.endswith(("conv1.weight", "conv2.weight")):
            missing += 2 * weight.shape[1] + weight.shape[0]  # a norm before it, and its bias
        if name.endswith("conv_shortcut.weight"):
            missing += weight.shape[0]
    assert parameters(model) + missing == theirs


def their_name(name: str) -> str:
    """The name of a parameter in ``UNet2DModel``."""
    for ours, theirs in {
        "linear_1": "time_embedding.linear_1",
        "linear_2": "time_embedding.linear_2",
        "middle.0": "mid_block.resnets.0",
        "middle.1.to_out": "mid_block.attentions.0.to_out.0",
        "middle.1": "mid_block.attentions.0",
        "middle.2": "mid_block.resnets.1",
        "down.": "down_blocks.",
        "up.": "up_blocks.",
    }.items():
        if name.startswith(ours):
            name = theirs + name[len(ours) :]
            break
    change = "downsamplers.0.conv" if name.startswith("down") else "upsamplers.0.conv"
    return name.replace("sampler.", f"{change}.") if ".sampler." in name else name


def test_its_weights_in_unet2dmodel_give_the_same_answers():
    """With ones and zeros for what it leaves out; needs diffusers, which is no dependency."""
    diffusers = pytest.importorskip("diffusers")
    model = network(3, 4, (16, 32, 32), 2).eval()
    theirs = diffusers.UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=2, block_out_channels=(16, 32, 32),
        down_block_types=("DownBlock2D",) * 3, up_block_types=("UpBlock2D",) * 3, norm_num_groups=8,
        resnet_time_scale_shift="scale_shift", attention_head_dim=None, num_class_embeds=4,
        attn_norm_num_groups=8,
    )  # fmt: skip
    state = {
        name: torch.ones_like(value) if "norm" in name and name.endswith("weight") else torch.zeros_like(value)
        for name, value in theirs.state_dict().items()
    }
    own = {their_name(name): value for name, value in model.state_dict().items()}
    assert set(own) <= set(state)
    theirs.load_state_dict({**state, **own})
    images, times, labels = inputs(3, 3, (16, 16))
    with torch.no_grad():
        expected = theirs.double().eval()(images.double(), times, class_labels=labels).sample
        found = model.double()(images.double(), times, labels)
    assert float((found - expected).norm()) < 1e-6 * float(expected.norm())
