"""The networks of DPGAN: the published parameter counts, every image size, and no example that touches another."""

import pytest
import torch

from understudy.models.dpgan import DpganDiscriminator, DpganDiscriminatorConfig, layer_channels, map_sizes, one_hot
from understudy.models.generator import GeneratorConfig, build_generator

SHAPES = [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 32, 32), (1, 9, 13), (3, 64, 8), (1, 33, 64)]


def discriminator(shape=(1, 8, 8), classes=3, width=4) -> DpganDiscriminator:
    torch.manual_seed(0)
    return DpganDiscriminator(DpganDiscriminatorConfig(shape=shape, classes=classes, width=width))


def generator(shape=(1, 8, 8), classes=3, width=4, latent=5):
    torch.manual_seed(0)
    config = GeneratorConfig(kind="dpgan", shape=shape, classes=classes, width=width, latent=latent)
    return build_generator(config)


def parameters(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def test_the_published_networks_have_the_published_number_of_parameters():
    """1.72M and 2.27M at 28x28 and ten classes: the weights layer by layer, and one bias for each output channel."""
    weights = 16 * 64 + 10 * 16 * 64 + 128 * 256 * 16 + 256 * 512 * 9 + 512 * 16
    assert parameters(discriminator((1, 28, 28), 10, 64)) == weights + 64 + 64 + 256 + 512 + 1 == 1_724_289
    weights = 128 * 256 * 16 + 10 * 256 * 16 + 512 * 256 * 9 + 256 * 128 * 16 + 128 * 16
    assert parameters(generator((1, 28, 28), 10, 64, 128)) == weights + 256 + 256 + 256 + 128 + 1 == 2_272_129


def test_the_published_layers_halve_28_to_4_with_kernels_4_4_3():
    network = discriminator((1, 28, 28), 10, 64)
    assert map_sizes((1, 28, 28)) == ((28, 28), (14, 14), (7, 7), (4, 4))
    layers = [network.image_layer, *network.layers, network.head]
    assert [layer.kernel_size for layer in layers] == [(4, 4), (4, 4), (3, 3), (4, 4)]
    assert [layer.stride for layer in layers] == [(2, 2), (2, 2), (2, 2), (1, 1)]
    assert layer_channels(64, 3) == (128, 256, 512)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("classes", [None, 3])
def test_every_size_goes_through_both(shape, classes):
    labels = torch.tensor([0, 2]) if classes else None
    making = generator(shape, classes)
    images = making.pixels(making(torch.randn(2, 5), torch.tensor([0, 2])))
    assert images.shape == (2, *shape)
    assert 0 <= float(images.detach().min()) <= float(images.detach().max()) <= 1
    logits = discriminator(shape, classes)(images, labels)
    assert logits.shape == (2,)
    assert map_sizes(shape)[-1] <= (4, 4)


def test_neither_holds_a_layer_that_mixes_examples_or_keeps_statistics():
    for network in (discriminator(), generator()):
        assert list(network.buffers()) == []
        kinds = {type(module).__name__ for module in network.modules()}
        assert not any("Norm" in kind or "Dropout" in kind for kind in kinds)


def test_an_example_changes_its_own_logit_and_no_other():
    network = discriminator()
    images, labels = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    changed = images.clone()
    changed[1] = 1 - changed[1]
    before, after = network(images, labels), network(changed, labels)
    assert after[1] != before[1]
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])


def test_the_label_counts_for_discriminator_and_generator():
    images = torch.rand(3, 1, 8, 8)
    network, making, latent = discriminator(), generator(), torch.randn(1, 5).repeat(3, 1)
    assert len(set(network(images[:1].repeat(3, 1, 1, 1), torch.arange(3)).tolist())) == 3
    drawn = making(latent, torch.arange(3))
    assert not torch.equal(drawn[0], drawn[1])


def test_images_are_shifted_to_be_centred_inside_the_discriminator():
    """Grey images of 0.5 are zeros to its first layer, so only the biases and the labels speak."""
    network = discriminator(classes=None)
    torch.nn.init.zeros_(network.image_layer.bias)
    for layer in [*network.layers, network.head]:
        torch.nn.init.zeros_(layer.bias)
    assert torch.equal(network(torch.full((2, 1, 8, 8), 0.5)), torch.zeros(2))
    assert not torch.equal(network(torch.zeros(2, 1, 8, 8)), torch.zeros(2))


def test_one_hot_is_that_of_torch():
    labels = torch.tensor([2, 0, 1, 2])
    assert torch.equal(one_hot(labels, 4).long(), torch.nn.functional.one_hot(labels, 4))
