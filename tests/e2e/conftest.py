import pytest

from daemon import SHARED, TINY, Daemon


@pytest.fixture(scope="module")
def tpd(tmp_path_factory):
    """One daemon for a module's tests that leave it as they found it; its end is clean."""
    daemon = Daemon(tmp_path_factory.mktemp("tpd"))
    yield daemon
    assert daemon.process.poll() is None, daemon.log()
    assert daemon.stop() == 0, daemon.log()


@pytest.fixture
def client(tpd):
    with tpd.client() as client:
        yield client


@pytest.fixture
def start(tmp_path):
    """start(*flags, model=…, env=…, wait=…): a daemon of the test's own."""
    started = []

    def start(*flags, model=TINY, **options):
        daemon = Daemon(tmp_path / f"tpd{len(started)}", model, *flags, **options)
        started.append(daemon)
        return daemon
    yield start
    for daemon in started:
        daemon.stop()


@pytest.fixture(scope="session")
def stories():
    """The published stories260K model, which only the shared cases have."""
    path = SHARED / "cases/models/stories260K-hf"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    return path
