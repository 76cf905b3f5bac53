"""Acoustic groups: planted clusters are found, sizes are what was asked for, what must stand alone does, and the cache is never believed blindly."""

from pathlib import Path

import numpy as np
import pytest

from mlxspec.audio.codes import groups as module
from mlxspec.audio.codes.groups import MEASURES, Groups, Measure, Size, Slot, build, neighbours, prepared, swapped, untrained
from mlxspec.audio.codes.groups_cache import cached, load, place, save
from mlxspec.errors import AudioError


def clusters(count: int = 30, each: int = 4, width: int = 16, seed: int = 0, spread: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Vectors in clusters, and the cluster of each."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 1, (count, width))
    return np.repeat(centres, each, axis=0) + rng.normal(0, spread, (count * each, width)), np.repeat(np.arange(count), each)


@pytest.mark.parametrize("measure", MEASURES)
def test_planted_clusters_are_found(measure: Measure) -> None:
    vectors, cluster = clusters()
    tokens = np.arange(40, 160)
    groups = build(200, [Slot(tokens, vectors)], Size(mean=4), measure)
    assert len(groups) == 30  # four tokens with the same surroundings are one group
    for i, token in enumerate(tokens):
        assert cluster[groups.around(token) - 40].tolist() == [cluster[i]] * 4


@pytest.mark.parametrize("mean", [1, 1.5, 3, 6, 10])
@pytest.mark.parametrize("measure", MEASURES)
def test_the_mean_size_is_what_was_asked_for(measure: Measure, mean: float) -> None:
    """Whatever the table's own scale: no threshold is a constant."""
    for scale in (0.01, 50.0):
        vectors = scale * np.random.default_rng(1).normal(0, 1, (300, 8)).astype(np.float32)
        groups = build(300, [Slot(np.arange(300), vectors)], Size(mean=mean), measure)
        assert groups.sizes(np.arange(300)).mean() == pytest.approx(mean, abs=0.02)
    assert mean > 1 or len(groups) == 0


def test_a_budget_of_distance_holds_and_is_used() -> None:
    vectors, _ = clusters(spread=0.5)
    rows = prepared(vectors.astype(np.float32), "distance")
    apart = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    typical = apart[~np.eye(len(rows), dtype=bool)].mean()
    sizes = []
    for budget in (0.2, 0.3, 0.4, 0.6):
        groups = build(120, [Slot(np.arange(120), vectors)], Size(distance=budget), "distance")
        pairs = [apart[t, other] for t in range(120) for other in groups.around(t) if other != t]
        assert not pairs or np.mean(pairs) <= budget * typical + 1e-2
        sizes.append(groups.sizes(np.arange(120)).mean())
    assert sizes == sorted(sizes) and sizes[-1] > sizes[0] + 1


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = prepared(np.random.default_rng(2).normal(0, 1, (100, 12)).astype(np.float32), "cosine")
    near, far = neighbours(rows, "cosine", 7)
    monkeypatch.setattr(module, "BLOCK", 9)
    nearer, farther = neighbours(rows, "cosine", 7)
    assert np.array_equal(np.sort(near), np.sort(nearer)) and np.allclose(np.sort(far), np.sort(farther), atol=1e-6)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -9)
    assert np.array_equal(np.sort(near), np.sort(np.argsort(-cosines, axis=1)[:, :7]))


def test_groups_stay_within_their_slot_and_their_size() -> None:
    vectors, _ = clusters(10, 20, spread=0.01)
    slots = [Slot(np.arange(100), vectors[:100]), Slot(np.arange(100, 200), vectors[:100])]
    groups = build(200, slots, Size(mean=12), largest=12)
    for token in range(200):
        around = groups.around(token)
        assert len(around) <= 12 and len(set(around // 100)) == 1 and token in around


def test_text_ends_and_untrained_rows_stand_alone() -> None:
    """Rows of no slot never appear; rows that are not finite, too short, or the same as another are left out of every group."""
    vectors, _ = clusters(10, 4)
    vectors[3] = 1e-4
    vectors[7] = vectors[8]
    vectors[11, 0] = np.nan
    vectors[15] = 0
    assert np.flatnonzero(untrained(vectors)).tolist() == [3, 7, 8, 11, 15]
    groups = build(100, [Slot(np.arange(50, 90), vectors)], Size(mean=4))
    alone = {*range(50), 53, 57, 58, 61, 65, *range(90, 100)}
    assert alone.isdisjoint(groups.grouped().tolist())
    assert all(groups.around(token).tolist() == [token] for token in alone)
    assert groups.sizes(np.array(sorted(alone))).tolist() == [1] * len(alone)


def test_equal_sets_are_one_group_and_keep_their_first_seed() -> None:
    groups = Groups.of(6, [(0, [1, 2]), (2, [0, 1]), (1, [2, 0]), (3, [4]), (5, [])])
    assert len(groups) == 2 and groups.seeds.tolist() == [0, 3] and groups.home.tolist() == [0, 0, 0, 1, -1, -1]
    assert groups.around(4).tolist() == [4]  # in a group of another, with no surroundings of its own
    with pytest.raises(ValueError, match="tokens from 0 to 9"):
        Groups.of(6, [(0, [9])])


def test_swapping_stays_within_groups() -> None:
    groups = Groups.of(8, [(0, [1, 2, 3]), (1, [0]), (5, [6])])
    tokens = [0, 1, 5, 7] * 500
    result, share = swapped(groups, tokens, seed=3)
    assert all(new in groups.around(old) for old, new in zip(tokens, result, strict=True))
    assert share == pytest.approx((0.75 + 0.5 + 0.5) / 4, abs=0.03)  # all of a group alike likely, the token itself too
    assert result == swapped(groups, tokens, seed=3)[0] != swapped(groups, tokens, seed=4)[0]
    assert swapped(groups, [], seed=0) == ([], 0.0)


def test_sizes_that_make_no_sense_are_refused() -> None:
    for size in ({}, {"mean": 2.0, "distance": 0.1}, {"mean": 0.5}, {"mean": 1e9}, {"distance": 1.0}, {"distance": -0.1}):
        with pytest.raises(ValueError, match="give"):
            Size(**size)


# ---- The cache ---------------------------------------------------------------------------------------------------------------------------

SETTINGS = {"model": "abc", "source": "head", "mean": 3}
SOME = Groups.of(20, [(0, [1, 2, 3]), (2, [5]), (9, [10])])


def test_groups_are_built_once_and_found_again(tmp_path: Path) -> None:
    built: list[int] = []
    said: list[str] = []

    def make() -> Groups:
        built.append(1)
        return SOME

    first = cached(tmp_path / "groups", SETTINGS, make, said.append)
    again = cached(tmp_path / "groups", SETTINGS, make, said.append)
    assert first.digest() == again.digest() and len(built) == 1 and not said
    cached(tmp_path / "groups", {**SETTINGS, "mean": 4}, make, said.append)
    cached(tmp_path / "groups", {**SETTINGS, "model": "abd"}, make, said.append)
    assert len(built) == 3 and len(list((tmp_path / "groups").iterdir())) == 3


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "bits", "other"])
def test_a_damaged_cache_is_built_anew_and_said(damage: str, tmp_path: Path) -> None:
    path = place(tmp_path, SETTINGS)
    save(path, SOME, SETTINGS)
    raw = bytearray(path.read_bytes())
    if damage == "bits":
        at = raw.find(SOME.members.tobytes())
        raw[at] ^= 1
        path.write_bytes(raw)
    elif damage == "other":
        save(path, SOME, {**SETTINGS, "model": "other"})
    else:
        path.write_bytes({"cut": bytes(raw[: len(raw) // 2]), "empty": b"", "garbage": b"no groups at all"}[damage])
    said: list[str] = []
    groups = cached(tmp_path, SETTINGS, lambda: SOME, said.append)
    assert groups.digest() == SOME.digest()
    assert len(said) == 1 and said[0].endswith("They are built anew.") and str(path) in said[0]
    assert load(path, SETTINGS).digest() == SOME.digest()


def test_arrays_that_contradict_each_other_are_not_believed(tmp_path: Path) -> None:
    wrong = Groups(20, SOME.seeds, SOME.offsets[:-1], SOME.members, SOME.home)
    save(tmp_path / "x.npz", wrong, SETTINGS)
    with pytest.raises(AudioError, match="cannot be read"):
        load(tmp_path / "x.npz", SETTINGS)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    assert cached(tmp_path / "file" / "groups", SETTINGS, lambda: SOME, said.append).digest() == SOME.digest()
    assert len(said) == 1 and "not kept" in said[0]
