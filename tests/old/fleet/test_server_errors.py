from __future__ import annotations

import datetime
import logging
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from scrapy_bloom.old.errors import BloomError, UnusableError
from scrapy_bloom.old.fleet.client import connect
from scrapy_bloom.old.redis_dupefilter import RedisBloomDupeFilter
from tests.old.support.fingerprints import fingerprints
from tests.old.support.proxy import TLSProxy
from tests.old.support.redis_servers import RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWORD = "sw0rd/f:sh@#%"
QUOTED = "sw0rd%2Ff%3Ash%40%23%25"


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that wants a password."""
    with RedisServer(tmp_path_factory.mktemp("guarded"), arguments=("--requirepass", PASSWORD)) as server:
        yield server


def write_certificate(directory: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1 and its key."""
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = directory / "server.crt", directory / "server.key"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


class ErrorsSpider(Spider):
    name = "site"


def dupefilter(settings: dict[str, object]) -> RedisBloomDupeFilter:
    crawler = get_crawler(ErrorsSpider, {"BLOOM_REDIS_KEY": "errors:%(spider)s", **settings})
    return RedisBloomDupeFilter.from_crawler(crawler)


def everything_said(caplog: pytest.LogCaptureFixture, error: BaseException) -> str:
    """Return all that a log could show of *error*: messages, tracebacks, the chain of exceptions."""
    formatter = logging.Formatter()
    chain: BaseException | None = error
    texts = [formatter.format(record) for record in caplog.records]
    while chain is not None:
        texts += [str(chain), repr(chain), repr(chain.args)]
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    return "\n".join(texts)


def assert_one_clear_message(caplog: pytest.LogCaptureFixture, settings: dict[str, object], expected: str) -> None:
    """Opening with *settings* fails with one CRITICAL line that has *expected* in it, and never the password."""
    with caplog.at_level(logging.DEBUG), pytest.raises(BloomError) as caught:
        dupefilter(settings).open()
    critical = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert len(critical) == 1
    assert expected in critical[0]
    said = everything_said(caplog, caught.value)
    for secret in (PASSWORD, QUOTED, "sw0rd"):
        assert secret not in said


def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    """If no server is there, the crawl ends before its first request, and the message names host and port."""
    port = free_port()
    url = f"redis://:{QUOTED}@127.0.0.1:{port}"
    assert_one_clear_message(caplog, {"BLOOM_REDIS_URL": url}, f"127.0.0.1:{port}")


@pytest.mark.parametrize("given", ["", "wrong@", f":{QUOTED}x@", f"nobody:{QUOTED}@"])
def test_a_refused_password(guarded_server: RedisServer, caplog: pytest.LogCaptureFixture, given: str) -> None:
    """A missing or wrong password or user is said to be refused, without showing it."""
    url = f"redis://{given}127.0.0.1:{guarded_server.port}"
    assert_one_clear_message(caplog, {"BLOOM_REDIS_URL": url}, "refuses the user or password")


def test_the_right_password(guarded_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """With the right password in the URL the filter opens; no log line shows it, and the key has the spider's name."""
    with caplog.at_level(logging.DEBUG):
        filter_ = dupefilter({"BLOOM_REDIS_URL": f"redis://:{QUOTED}@127.0.0.1:{guarded_server.port}"})
        filter_.open()
        assert not filter_.request_seen(Request("http://localhost/"))
        filter_.close("finished")
    assert "key errors:site" in caplog.text
    assert "sw0rd" not in caplog.text


def test_a_password_among_the_parameters_of_scrapy_redis(
    guarded_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """REDIS_HOST, REDIS_PORT and REDIS_PARAMS mean what they mean in scrapy-redis, and a wrong password is not
    shown."""
    settings: dict[str, object] = {
        "REDIS_HOST": "127.0.0.1",
        "REDIS_PORT": guarded_server.port,
        "REDIS_PARAMS": {"password": PASSWORD, "db": 3, "socket_timeout": 30, "retry_on_timeout": True},
    }
    filter_ = dupefilter(settings)
    filter_.open()
    filter_.close("finished")
    with guarded_server.client(db=3) as client:
        assert client.keys("*errors*")
    assert_one_clear_message(
        caplog, {**settings, "REDIS_PARAMS": {"password": f"{PASSWORD}x"}}, "refuses the user or password"
    )


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{PASSWORD}@localhost:6379",
        f"http://:{QUOTED}@localhost",
        f":{QUOTED}@localhost",
        f"redis://:{QUOTED}@localhost:port",
        "redis:sw0rd",
        17,
    ],
)
def test_a_url_that_is_none(caplog: pytest.LogCaptureFixture, url: object) -> None:
    """An unreadable URL is refused by the name of the setting, and not shown, since it may hold a password."""
    assert_one_clear_message(caplog, {"BLOOM_REDIS_URL": url}, "BLOOM_REDIS_URL must be a URL")


def test_a_misspelt_setting_does_not_show_its_value(caplog: pytest.LogCaptureFixture) -> None:
    """BLOOM_REDIS_URI is refused as unknown without showing the URL in it."""
    url = f"redis://:{QUOTED}@localhost"
    assert_one_clear_message(caplog, {"BLOOM_REDIS_URI": url}, "did you mean BLOOM_REDIS_URL?")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BLOOM_REDIS_KEY", "{tag}:x"),
        ("BLOOM_REDIS_KEY", "%(name)s"),
        ("BLOOM_REDIS_ENGINE", "fast"),
        ("BLOOM_REDIS_SHARDS", 0),
        ("BLOOM_REDIS_ON_ERROR", "drop"),
        ("BLOOM_REDIS_TTL", -1),
    ],
)
def test_a_wrong_value_is_named(caplog: pytest.LogCaptureFixture, name: str, value: object) -> None:
    """A wrong value of any other setting is shown with what is allowed."""
    assert_one_clear_message(caplog, {name: value}, f"{name} must be")
    assert repr(value) in caplog.text


def test_the_server_filter_where_there_is_none(plain_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Engine bf on a server without BF.* is refused, and the message names the engine that works."""
    settings: dict[str, object] = {"BLOOM_REDIS_URL": plain_server.url, "BLOOM_REDIS_ENGINE": "bf"}
    assert_one_clear_message(caplog, settings, 'Set BLOOM_REDIS_ENGINE to "bitmap"')


def test_a_user_who_may_not_run_scripts(plain_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """If the server forbids a command, the message quotes the server's reason."""
    with plain_server.client() as client:
        client.acl_setuser(
            "reader", enabled=True, passwords=["+sw0rd"], keys=["*"], categories=["+@all", "-@scripting"]
        )
    url = f"redis://reader:sw0rd@127.0.0.1:{plain_server.port}"
    assert_one_clear_message(caplog, {"BLOOM_REDIS_URL": url}, "eval")


def test_tls(tmp_path: Path, guarded_server: RedisServer) -> None:
    """rediss:// speaks TLS, checks the certificate, and carries the password."""
    certificate, key = write_certificate(tmp_path)
    with TLSProxy(guarded_server.port, certificate, key) as proxy:
        url = f"rediss://:{QUOTED}@127.0.0.1:{proxy.port}"
        filter_ = dupefilter({"BLOOM_REDIS_URL": f"{url}?ssl_ca_certs={certificate}"})
        filter_.open()
        assert filter_.seen_many(fingerprints(3)) == [False] * 3
        filter_.close("finished")
        with pytest.raises(UnusableError) as caught:
            connect(url, {})
        assert "sw0rd" not in str(caught.value)
        assert "certificate" in str(caught.value).lower()


def test_without_redis_py_one_message_says_what_to_install() -> None:
    """Without redis-py the package can be imported, and a crawl that needs it says which extra to install."""
    code = """
import sys
sys.modules["redis"] = None
import scrapy_bloom
from scrapy import Spider
from scrapy.utils.reactor import install_reactor
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
from scrapy.utils.test import get_crawler
class SiteSpider(Spider):
    name = "site"
dupefilter = scrapy_bloom.RedisBloomDupeFilter.from_crawler(get_crawler(SiteSpider))
try:
    dupefilter.open()
except scrapy_bloom.old.errors.MissingPackageError as error:
    print(error)
"""
    root = str(Path(__file__).parents[3])
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root).stdout
    assert 'pip install "scrapy-bloom[redis]"' in out


@pytest.mark.parametrize(
    "options", ["decode_responses=True", "protocol=3", "encoding=utf-16&socket_timeout=0.000001&decode_responses=yes"]
)
def test_options_in_the_url_do_not_change_how_answers_are_read(
    server: RedisServer, engine: str, prefix: str, options: str
) -> None:
    """Options in the URL that decide how answers are read or commands repeated are ignored; others count."""
    url = f"{server.url}/1?{options}&client_name=mine"
    opened = [
        dupefilter({"BLOOM_REDIS_URL": url, "BLOOM_REDIS_KEY": prefix, "BLOOM_REDIS_ENGINE": engine}) for _ in range(2)
    ]
    for one in opened:
        one.open()
    request = Request("http://localhost/")
    assert [one.request_seen(request) for one in opened] == [False, True]
    with server.client() as client:
        assert "mine" in {one["name"] for one in client.client_list()}
    for one in opened:
        one.close("finished")


@pytest.mark.parametrize("options", ["", "?lib_name=&lib_version="])
def test_a_password_that_is_set_in_mid_crawl(tmp_path: Path, caplog: pytest.LogCaptureFixture, options: str) -> None:
    """A server that comes back and wants a password counts as away, and the log says why, in whichever words the server
    refuses: those for redis-py's first command about itself, or those for a long command of ours."""
    server = RedisServer(tmp_path)
    with server:
        filter_ = dupefilter({"BLOOM_REDIS_URL": server.url + options, "BLOOM_REDIS_ON_ERROR": "allow"})
        filter_.open()
        server.kill()
        server.require_password(PASSWORD)
        server.start()
        assert not filter_.request_seen(Request("http://localhost/"))
        filter_.close("finished")
    assert "is away (it refuses the user or password: " in caplog.text
