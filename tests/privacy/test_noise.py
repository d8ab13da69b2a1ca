"""Noise of differential privacy: normal, independent, and of a key that nobody can try out or meet by chance."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from scipy import stats
from torch import Tensor

from app.common.seeding import derive_key
from app.privacy.noise import NoiseSource, NoiseStream

KEY = bytes(range(32))
MANY = torch.empty(400_001)


def _noise(key: bytes, like: Tensor = MANY[:64], deviation: float = 1.0) -> Tensor:
    return NoiseStream(key).normal_like(like, deviation)


def _colliding_places(rounds: int, clients: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Two (round, client) pairs whose 63-bit keys share the 32 bits that torch's CPU generator keeps."""
    seen: dict[int, tuple[int, int]] = {}
    for place in product(range(rounds), range(clients)):
        low = derive_key(0, "nbafl-up", *place) & 0xFFFFFFFF
        if low in seen:
            return seen[low], place
        seen[low] = place
    raise AssertionError("no collision: choose more rounds")


def test_rounds_and_clients_whose_short_seeds_collide_have_different_noise() -> None:
    first, second = _colliding_places(1000, 100)
    source = NoiseSource()
    noise = [source.stream(0, "nbafl-up", *place).normal_like(MANY[:1000], 3.0) for place in (first, second)]
    assert abs(float(torch.corrcoef(torch.stack(noise))[0, 1])) < 0.2


def test_every_bit_of_the_key_changes_the_noise() -> None:
    """With 32 effective bits an adversary tries all seeds in hours and subtracts the noise of an upload."""
    streams = {_noise(KEY).numpy().tobytes()}
    for bit in range(256):
        changed = (int.from_bytes(KEY, "big") ^ (1 << bit)).to_bytes(32, "big")
        streams.add(_noise(changed).numpy().tobytes())
    assert len(streams) == 257


def test_secret_keys_are_never_the_run_s_and_never_repeat() -> None:
    secret, keyed = NoiseSource(secret=True), NoiseSource()
    keys = {secret.key(0, "dp-sgd", 1, 2) for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == 32 for key in keys)
    assert keyed.key(0, "dp-sgd", 1, 2) == keyed.key(0, "dp-sgd", 1, 2)
    assert keyed.key(0, "dp-sgd", 1, 2) not in keys


def test_key_is_not_any_generator_of_torch_in_disguise() -> None:
    """The demonstration's attack: subtract the noise of a torch generator seeded by the key's low bits."""
    weights = 0.1 * torch.ones(16)
    key = NoiseSource(secret=True).key(0, "nbafl-up", 3, 7)
    upload = weights + _noise(key, weights, 5.8)
    for part in (key[:4], key[-4:], key[:8], key[-8:]):
        for order in ("big", "little"):
            guess = torch.Generator().manual_seed(int.from_bytes(part, order) >> 1)  # type: ignore[arg-type]
            assert float((upload - 5.8 * torch.randn(16, generator=guess) - weights).abs().max()) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_normal(dtype: torch.dtype) -> None:
    noise = _noise(KEY, MANY.to(dtype), 2.0)
    assert noise.dtype == dtype
    assert noise.shape == MANY.shape
    assert stats.kstest(noise.double().numpy() / 2, "norm").pvalue > 0.01
    tails = (noise.abs() > 8).sum().item()  # four standard deviations
    assert stats.binomtest(tails, len(MANY), 2 * stats.norm.sf(4)).pvalue > 0.01
    halves = noise.double()[: len(MANY) // 2], noise.double()[len(MANY) // 2 : -1]
    for one, other in (halves, (halves[0] ** 2, halves[1] ** 2), (noise[:-1].double(), noise[1:].double())):
        assert stats.pearsonr(one.numpy(), other.numpy()).pvalue > 0.01


def test_precisions_and_shapes_share_one_stream() -> None:
    single, double = _noise(KEY, MANY[:60].view(3, 4, 5)), _noise(KEY, MANY[:60].double())
    assert torch.allclose(single.flatten().double(), double, atol=1e-6)


def test_stream_goes_on() -> None:
    stream = NoiseStream(KEY)
    assert not torch.equal(stream.normal_like(MANY[:10], 1.0), stream.normal_like(MANY[:10], 1.0))


def test_no_deviation_is_no_noise() -> None:
    assert torch.equal(_noise(KEY, MANY[:5], 0.0), torch.zeros(5))


@pytest.mark.parametrize("rate", [1e-3, 0.3, 1.0])
def test_coins_fall_as_often_as_they_should(rate: float) -> None:
    heads = int(NoiseStream(KEY).coins(200_000, rate).sum())
    assert stats.binomtest(heads, 200_000, rate).pvalue > 0.01


@pytest.mark.parametrize("draw", [lambda s: s.normal_like(MANY[:50], 1.0), lambda s: s.coins(50, 0.5)])
def test_draws_do_not_touch_torch_s_own_generator(draw: Callable[[NoiseStream], Tensor]) -> None:
    before = torch.get_rng_state()
    draw(NoiseStream(KEY))
    assert torch.equal(before, torch.get_rng_state())


def test_description_names_key_and_rounding() -> None:
    for source in (NoiseSource(), NoiseSource(secret=True)):
        assert "Mironov" in source.description
    assert "operating system" in NoiseSource(secret=True).description
    assert "seed" in NoiseSource().description


def test_nothing_gets_no_noise() -> None:
    """Clients that upload nothing, as in local training, are no error; the stream goes on as if not asked."""
    stream, fresh = NoiseStream(KEY), NoiseStream(KEY)
    assert stream.normal_like(MANY[:0], 1.0).shape == (0,)
    assert torch.equal(stream.normal_like(MANY[:8], 1.0), fresh.normal_like(MANY[:8], 1.0))
