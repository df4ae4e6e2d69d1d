"""The page in a browser: moved by hand, by keyboard and by address, and always the command line's numbers."""

import shlex
import subprocess
import sys

import pytest

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address():
    """`remanence explore` as a person starts it."""
    command = [sys.executable, "-u", "-m", "remanence", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
        yield server.stdout.readline().split()[1]
        server.terminate()


def printed(command: str) -> str:
    arguments = [sys.executable, "-m", *shlex.split(command)]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True)  # noqa: S603
    return " ".join(said.stdout.split())


def settled(watched) -> str:
    """The sentence once the certificate and the budget are there."""
    watched.page.wait_for_selector("#sentence:not(.stale)")
    watched.page.wait_for_selector("#alone:not(:empty)")
    return " ".join(watched.page.inner_text("#sentence").split())


def same_as_the_command_line(watched) -> None:
    sentence = settled(watched)
    assert printed(watched.page.inner_text("#command")).startswith(sentence)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_quiet_accessible_and_asks_only_this_machine(watch, address, scheme):
    watched = watch(address, scheme=scheme)
    same_as_the_command_line(watched)
    watched.page.wait_for_selector("#rate-curve .curve", state="attached")
    watched.keep(f"explore-{scheme}")
    assert watched.violations() == []
    assert watched.complaints == []
    assert all(one.startswith(address) for one in watched.addresses)


def test_the_slider_or_epsilon_move_the_numbers_and_they_stay_the_command_lines(watch, address):
    watched = watch(address)
    before = settled(watched)
    watched.page.get_by_label("Noise multiplier, slider").focus()
    for _ in range(40):
        watched.page.keyboard.press("ArrowLeft")
    watched.page.locator("#command", has_not_text="--noise-multiplier 1.1 ").wait_for()
    same_as_the_command_line(watched)
    assert settled(watched) != before
    assert watched.page.input_value("#noise_multiplier") in watched.page.inner_text("#command")
    watched.page.get_by_label("ε and δ").check()
    watched.page.locator("#command", has_text="--epsilon 8").wait_for()
    same_as_the_command_line(watched)
    assert "noise multiplier of" in watched.page.inner_text("#meaning")


def test_a_goal_finds_the_noise(watch, address):
    watched = watch(address)
    settled(watched)
    watched.page.fill("#goal", "20")
    watched.page.click("#solve")
    watched.page.locator("#command", has_text="--noise-multiplier 1.37").wait_for()
    same_as_the_command_line(watched)
    dots = watched.page.get_attribute("#dots", "aria-label")
    assert dots == "Of 1000: 10 found by guessing, at most 10 more with the release."
    assert watched.page.locator("#dots .extra").count() == 10


def test_an_address_can_be_shared(watch, address):
    settings = "#noise_multiplier=2.5&delta=0.000001&sample_rate=0.1&steps=50&candidates=10"
    watched = watch(address + settings)
    sentence = settled(watched)
    assert "--noise-multiplier 2.5 --sample-rate 0.1 --steps 50 --candidates 10" in watched.page.inner_text(
        "#command"
    )
    again = watch(watched.page.url)
    assert settled(again) == sentence
    same_as_the_command_line(again)


@pytest.mark.parametrize("text", ["-1", "0", "1e9"])
def test_a_number_that_cannot_be_is_answered_with_a_sentence(watch, address, text):
    watched = watch(address)
    settled(watched)
    watched.page.fill("#noise_multiplier", text)
    watched.page.wait_for_selector("#problem:not([hidden])")
    assert "needs: a number from 0.1 to 1000" in watched.page.inner_text("#problem")
    assert all("400" in complaint for complaint in watched.complaints)  # the refusal itself, and no exception
    assert watched.page.locator("#answer .stale").count() >= 6, "what is old is dimmed after an error"
    watched.page.fill("#noise_multiplier", "2")
    watched.page.wait_for_selector("#problem", state="hidden")
    watched.page.wait_for_selector("#answer[aria-busy=false]")
    assert watched.page.locator("#answer .stale").count() == 0


def test_a_taken_port_is_a_sentence(address):
    port = address.rstrip("/").rpartition(":")[2]
    command = [sys.executable, "-m", "remanence", "explore", "--no-browser", "--port", port]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert refused.returncode == 2
    assert refused.stderr.startswith("InputError: The port is taken.")


def test_a_copied_line_is_the_line(watch, address):
    watched = watch(address)
    settled(watched)
    watched.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    watched.page.click("[data-copy=python]")
    watched.page.get_by_text("Copied.").wait_for()
    assert watched.page.evaluate("navigator.clipboard.readText()") == watched.page.inner_text("#python")
