"""Rule 7: a fresh task is tried by about two workers, and nobody waits long."""

from buquet._core import ident
from buquet.protocol.choice import fraction, is_nearest, nearest, patience_s

IDS = [ident.mint(number, 5, number) for number in range(400)]


def test_shares_are_even_and_differ_between_workers() -> None:
    shares = [fraction("worker-1", task_id) for task_id in IDS]
    assert all(0 <= share < 1 for share in shares)
    assert 0.45 < sum(shares) / len(shares) < 0.55
    orders = {tuple(sorted(IDS, key=lambda task_id, w=w: fraction(f"w{w}", task_id))) for w in range(10)}
    assert len(orders) == 10


def test_a_lone_worker_never_waits() -> None:
    assert {patience_s(share, workers=1) for share in (0.0, 0.5, 0.999999)} == {0.0}
    assert patience_s(0.999999, workers=2) == 0.0


def test_the_number_that_tries_doubles_every_quarter_second() -> None:
    def tries(share: float, age_s: float, workers: int) -> bool:
        return share < (2 / workers) * 2 ** (age_s / 0.25)

    for workers in (3, 16, 64, 1000):
        for share in (0.001, 0.02, 0.04, 0.5, 0.999):
            patience = patience_s(share, workers=workers)
            assert patience >= 0
            assert tries(share, patience + 1e-6, workers)
            assert patience == 0 or not tries(share, patience - 1e-6, workers)


def test_about_two_of_many_workers_try_a_fresh_task() -> None:
    at_once = [
        sum(patience_s(fraction(f"w{w}", task_id), workers=64) == 0 for w in range(64)) for task_id in IDS
    ]
    assert 1.7 < sum(at_once) / len(IDS) < 2.3


def test_the_last_worker_of_many_waits_about_a_second() -> None:
    assert max(patience_s(fraction(f"w{w}", IDS[0]), workers=64) for w in range(64)) < 1.3


def test_one_worker_is_the_nearest_to_a_task() -> None:
    workers = [f"w{number}" for number in range(8)]
    for task_id in IDS:
        shares = {worker: fraction(worker, task_id) for worker in workers}
        own = [w for w in workers if is_nearest(shares[w], task_id, set(workers) - {w})]
        assert own == [min(workers, key=shares.__getitem__)]
        assert nearest(task_id, workers) == shares[own[0]]
    assert is_nearest(0.999999, IDS[0], [])
