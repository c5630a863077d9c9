"""Exceptions have names without numbers, that end with a whole word."""

from __future__ import annotations

from harness.checks.exceptions import normalised_text


def test_a_long_message_ends_with_a_whole_word() -> None:
    name = normalised_text("RuntimeError", "leading " * 14 + "transformer_engine_dimension of 8")
    assert name == "RuntimeError: " + ("leading " * 14).strip()


def test_one_long_word_is_cut() -> None:
    assert normalised_text("KeyError", "x" * 200) == "KeyError: " + "x" * 120


def test_short_messages_stay() -> None:
    assert normalised_text("ValueError", "shape [3, 4] of t12\nsecond line") == "ValueError: shape [#] of #"


def test_what_torch_script_says_around_an_exception_does_not_count() -> None:
    inner = "Inplace update to inference tensor outside InferenceMode is not allowed.You can make a clone"
    around = (
        "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript:\n"
        f'  File "quantization.py", line 859, in f\n    x.copy_(y)\n    ~~~~~~ <--- HERE\nRuntimeError: {inner}\n\n'
    )
    assert normalised_text("RuntimeError", around) == normalised_text("RuntimeError", inner)
    other = around.replace(f"RuntimeError: {inner}", "IndexError: out of range")
    assert normalised_text("RuntimeError", other) == "IndexError: out of range"
    assert normalised_text("RuntimeError", around.split("RuntimeError")[0]).startswith("RuntimeError: The following")
