"""Several trials at a time, each waited for by a thread of its own; the study is asked and told in one thread alone."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from optuna.study import Study

from kernelyard.tuner import studies
from kernelyard.tuner.bench import Result
from kernelyard.tuner.search import Asked, Outcome, Outcomes, Try


def side_by_side(width: int) -> Outcomes:
    """Up to `width` trials at a time; where one raises, or the run is interrupted, all that run are closed as failed."""

    def outcomes(study: Study, trials: Iterator[Asked], run: Try) -> Generator[Outcome, None, None]:
        pool, running = ThreadPoolExecutor(width), dict[Future[Result], Asked]()
        try:
            while True:
                while len(running) < width and (asked := next(trials, None)) is not None:
                    running[pool.submit(run, asked[1])] = asked
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    result = done.result()
                    yield *running.pop(done), result
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for trial, _ in running.values():
                studies.abandon(study, trial, "interrupted")

    return outcomes
